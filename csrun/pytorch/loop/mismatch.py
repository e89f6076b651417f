"""Errors for calls that differ from those of step 1: the difference and the remedy."""

from typing import Any

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.host_eval import Computation, LazyResult
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.record.arguments import leaves_of
from csrun.pytorch.record.traced import TracedTensor
from csrun.pytorch.record.unsupported import AFTER_ITS_STEP, EARLIER_STEP, LATE_BACKWARD
from csrun.pytorch.step.expected_calls import Expected
from csrun.pytorch.step.loop_calls import MODEL
from csrun.pytorch.step.loop_writes import is_write
from csrun.pytorch.step.step_outputs import StepOutputs, StepValue
from csrun.pytorch.step.tokens import LazyTensor, Token

LONGEST = 40  # characters of an argument in a message
CALLED_AGAIN = (
    "the model is called more often than in step 1, or after optimizer.step(): call it as often "
    "in each step, or call copy.deepcopy(model), made here"
)


def cause_of_call(step: LoopStep | None) -> str:
    """Return the difference from step 1 in a call of the model; empty for another shape of a
    result.
    """
    if step is not None and step.has_other_shapes:
        return ""
    if step is not None and step.changed:
        return step.changed
    return f"{user_line()}: the model is not called as in step 1"


def require_open(step: LoopStep) -> None:
    """Raises: UsageError for a call of the model after its step, or its recording"""
    if step.status.is_over or (step.recorded is not None and step.recorded.is_finished):
        raise UsageError(f"{user_line()}: {CALLED_AGAIN}")


def require_current(leaves: list[Any], step: StepOutputs | None) -> None:
    """Raises: UsageError if an argument belongs to another step

    step: the current one; None if it is recorded.
    """
    for leaf in leaves:
        if reason := _stale_reason(leaf, step):
            raise UsageError(f"{user_line()}: {reason}")


def require_usable(leaves: list[Any], step: StepOutputs | None) -> None:
    """Raises: UsageError if an argument belongs to another step and has a gradient

    step: the current one; None if it is recorded.
    """
    lazy = TracedTensor | LazyTensor
    require_current([x for x in leaves if isinstance(x, lazy) and x.requires_grad], step)


def is_written(step: LoopStep | None, func: Any, args: tuple[Any, ...]) -> bool:
    """True for a write into a value of the current step on tokens, which step 1 did not make."""
    is_of_step = is_write(func) and isinstance(args[0], Token)
    return is_of_step and step is not None and args[0].step is step.outputs


def another_call(
    step: LoopStep | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> UsageError:
    """Return the error for a call of the model that step 1 did not make."""
    leaves = leaves_of(args, kwargs)
    require_current(leaves, step.outputs if step else None)
    return UsageError(f"{user_line()}: {_difference(step, leaves, tuple(kwargs))}")


def cause_of_loss(step: LoopStep | None) -> str:
    """Return the difference from step 1 in the computation of a loss; empty for another shape of a
    result.
    """
    if step is not None and step.has_other_shapes:
        return ""
    if step is not None and step.changed:
        return step.changed
    how = step.mismatch if step is not None else ""
    return f"{user_line()}: the loss is not computed as in step 1{how}"


def another_loss(step: LoopStep | None, loss: LazyTensor) -> UsageError:
    """Return the error for backward() of a value that is not the loss of step 1."""
    if isinstance(loss, Token) and (step is None or loss.step is not step.outputs):
        return UsageError(f"{user_line()}: {LATE_BACKWARD}")
    sources = loss.result.of.sources() if isinstance(loss, LazyResult) else []
    sources = [x for x in sources if not _is_without_gradient(x)]
    require_current(sources, step.outputs if step else None)
    return UsageError(
        f"{user_line()}: backward() must be called on the loss as step 1 computed it, got another "
        f"value{step.mismatch if step else ''}: compute the loss in the same way in each step; "
        "have forward use a number that changes, as an attribute of the model"
    )


def left_early(step: LoopStep) -> UsageError:
    """Return the error for a step that is left before the calls of step 1, and has run."""
    number = step.outputs.number + 1
    return UsageError(
        f"{user_line()}: step {number} cannot be recorded, since a tensor or a module that it used "
        "has changed since: make the same calls in each step, or initialize(fast=False)"
    )


def is_of_loader(value: Any) -> bool:
    """True if a value is the batch of a finished step, or computed from one."""
    return _stale_reason(value, None) is AFTER_ITS_STEP


def _is_without_gradient(source: Any) -> bool:
    if isinstance(source, Computation):
        return not source.has_gradients
    return isinstance(source, StepValue) and source.is_detached


def _stale_reason(leaf: Any, step: StepOutputs | None) -> str | None:
    """Return why the step cannot use a value, or None."""
    if isinstance(leaf, TracedTensor):
        return None if leaf.recorder.is_open else leaf.stale_reason
    if isinstance(leaf, Token | StepValue):
        reason = AFTER_ITS_STEP if leaf.slot.is_input else EARLIER_STEP
        return None if leaf.step is step else reason
    if isinstance(leaf, Computation):
        return EARLIER_STEP
    if isinstance(leaf, LazyResult):
        reasons = (_stale_reason(source, step) for source in leaf.result.of.sources())
        return next(filter(None, reasons), None if step else EARLIER_STEP)
    return None


def _difference(step: LoopStep | None, leaves: list[Any], keywords: tuple[str, ...]) -> str:
    if not any(isinstance(leaf, LazyTensor | TracedTensor) for leaf in leaves):
        return (
            "the model is called on tensors that are not of the Session's batch: for a prediction "
            "call it under torch.no_grad(); to train, iterate over the cbtorch.dataloader in the "
            "block"
        )
    if step is not None and step.mismatch:
        return f"the model's input is not computed as in step 1{step.mismatch}"
    expected = step.expected if step else None
    if expected is None or expected.name != MODEL:
        return CALLED_AGAIN
    return _difference_of(expected, leaves, keywords)


def _difference_of(expected: Expected, leaves: list[Any], keywords: tuple[str, ...]) -> str:
    """Describe how a call's arguments differ from the expected ones."""
    if keywords != expected.how[0] or len(leaves) != len(expected.operands):
        return "the model is called with other arguments than in step 1: give it the same in each"
    index = expected.first_difference(leaves)
    was, given = expected.operands[index], leaves[index]
    if isinstance(given, torch.Tensor):
        return (
            f"argument {index} of the model is another tensor than in step 1, or computed in "
            "another way: compute it in the dataset, or in the same way in each step"
        )
    return (
        f"argument {index} of the model is {_text(given)}, and was {_text(was)} in step 1: set an "
        "attribute that forward reads before the batch is taken, or put it into the batch"
    )


def _text(value: Any) -> str:
    found = repr(value)
    return found if len(found) <= LONGEST else f"{found[:LONGEST]}..."
