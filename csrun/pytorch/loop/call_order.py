"""Errors for calls of a loop that come in the wrong order."""

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.loader.order import PassOrders
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.step.variant import StepVariant


def read_after_block() -> UsageError:
    """Return the error for a pass that is read after its Session's block has ended."""
    return UsageError(
        f"{user_line()}: an iterator of a dataloader is used after the Session's block in which "
        "it was created: create a new one"
    )


def changed_too_late(name: str) -> UsageError:
    """Return the error for a change of a value that forward reads, after it was read."""
    return UsageError(
        f"{user_line()}: {name}, which forward reads, has changed since the model was called in "
        "this step, or a value of the step was read: change it before the loop takes a batch"
    )


def require_read_to_end(orders: PassOrders) -> None:
    """Raises: UsageError for a pass whose order depends on how far the previous one was read"""
    if orders.is_in_progress and orders.draws_lazily:
        raise UsageError(
            f"{user_line()}: the last pass was not read to its end, and the DataLoader shuffles by "
            "its own generator: call torch.manual_seed(...) and omit generator=, or read each "
            "pass to its end"
        )


def require_followed(step: LoopStep, accumulates: bool) -> None:
    """Check that the loop may leave a batch without its end.

    accumulates: batches may be left between backward() and optimizer.step().

    Raises: UsageError if a value of it was read, so that it has already run without its end
    """
    was_read = step.status.is_queued and step.trains
    if was_read and not (step.status.has_gradients and accumulates and not step.is_updated):
        needed = "backward()" if accumulates and not step.is_updated else "optimizer.step()"
        raise UsageError(
            f"{user_line()}: {needed} must follow: step {step.outputs.number + 1} has run, since a "
            f"value of it was read; read the value after {needed}, and do not skip it because of it"
        )


def step_of(step: LoopStep | None) -> LoopStep:
    """Return the step whose optimizer.step() is called.

    Raises: UsageError if there is none
    """
    if step is None:
        raise UsageError(
            f"{user_line()}: optimizer.step() is called in a step that has neither taken a batch "
            "of a cbtorch.dataloader nor called the model: give the DataLoader to "
            "cbtorch.dataloader, or have the loop call the model itself, not its methods or layers"
        )
    if step.status.is_over:
        raise UsageError(
            f"{user_line()}: optimizer.step() must be called once for each batch, got a second "
            "one: give the Session lists, [model] and [optimizer]"
        )
    if not step.status.has_gradients:
        raise UsageError(f"{user_line()}: optimizer.step() needs a loss.backward() before it")
    return step


def require_same_numbers(step: LoopStep, numbers: tuple[float, ...]) -> None:
    """Raises: UsageError if the optimizer's numbers have changed since the step was queued"""
    if step.numbers != numbers:
        raise UsageError(
            f"{user_line()}: lr, weight_decay or param_groups have changed since a value was read, "
            "and the step has run with the old ones: read values after optimizer.step(), or use "
            "initialize(fast=False)"
        )


def require_not_queued(step: LoopStep) -> None:
    """Raises: UsageError if the step was queued before gradients were cleared"""
    if step.status.is_queued:
        raise UsageError(
            f"{user_line()}: gradients were cleared between a value that was read and backward(), "
            "and the step has run: read values after backward()"
        )


def require_same_edits(step: LoopStep, variant: StepVariant) -> None:
    """Raises: UsageError if edits of gradients need another variant than the one queued"""
    if variant is not step.variant and step.status.is_queued:
        raise edited_too_late()


def edited_too_late() -> UsageError:
    """Return the error for edits of gradients in a step that has already run without them."""
    return UsageError(
        f"{user_line()}: gradients are edited differently than in earlier steps, and this step "
        "has run, since a value of it was read: read values after optimizer.step()"
    )


def hooked_too_late(cause: str) -> UsageError:
    """Return the error for hooks of gradients in a step that has already run without them."""
    return UsageError(
        f"{cause}, and the step has run, since a value of it was read: read values after backward()"
    )


def require_optimizer(optimization: Optimization | None) -> None:
    """Raises: UsageError for backward() in a Session that evaluates"""
    if optimization is None:
        raise UsageError(
            f"{user_line()}: backward() is called in a Session without an optimizer: pass it one, "
            'and mode="train"'
        )


def require_training(optimization: Optimization | None) -> None:
    """Raises: UsageError for a summary in a Session that does not train"""
    if optimization is None:
        raise UsageError(
            f"{user_line()}: cbtorch.summarize_scalar needs a training, and this Session "
            'evaluates: print the value, or use mode="train"'
        )
