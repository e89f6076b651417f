"""Calls of a loop that come in an order in which PyTorch or a Session would do something else."""

from typing import Any

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.loader.order import Orders
from csrun.pytorch.loop.loop_step import LoopStep
from csrun.pytorch.optimizers import Optimization
from csrun.pytorch.step.variant import StepVariant


def require_block(is_over: bool) -> None:
    """Raises: UsageError where a pass goes on behind its Session's block, which is over"""
    if is_over:
        raise UsageError(
            f"{user_line()}: a pass over a dataloader is read behind the block of the Session "
            "in which it began: begin another one"
        )


def changed_between_calls(name: str) -> UsageError:
    """The error of a change of what forward reads, between two calls of the model in a step."""
    return UsageError(
        f"{user_line()}: {name}, which forward reads, has changed between two calls of the model "
        "in one step, and had not in steps 1 to 3: change it before the loop takes a batch"
    )


def require_read_to_end(orders: Orders) -> None:
    """Raises: UsageError for a new pass whose order depends on how far the last one was read"""
    if orders.is_under_way and orders.draws_as_it_goes:
        raise UsageError(
            f"{user_line()}: the pass before was left before its end, and the DataLoader shuffles "
            "by a generator of its own: leave out generator= and call torch.manual_seed(...), or "
            "read each pass to its end"
        )


def other_modes() -> UsageError:
    """An error about modes of modules that were set behind a batch, and have no program."""
    return UsageError(
        f"{user_line()}: the train() or eval() of modules, or requires_grad, is another than it "
        "was at the batch, or in the steps before: set it before the loop takes its batch, so "
        "that the step is recorded"
    )


def require_followed(step: LoopStep, accumulates: bool) -> None:
    """The loop leaves a batch. accumulates: it may do so between backward() and optimizer.step().

    Raises: UsageError where a value was read of it, so that it has run, and that is missing
    """
    was_read = step.state.is_queued and step.trains
    if was_read and not (step.has_gradients and accumulates):
        needed = "backward()" if accumulates else "optimizer.step()"
        raise UsageError(
            f"{user_line()}: {needed} must follow where a value was read before it, as step "
            f"{step.outputs.number + 1} has run: read the value behind it; a step cannot be "
            "skipped by its own loss"
        )


def step_of(step: LoopStep | None, closure: Any) -> LoopStep:
    """The step whose optimizer.step() is called.

    Raises: UsageError where it has none
    """
    if closure is not None:
        raise UsageError(
            f"{user_line()}: optimizer.step() takes no closure, which would compute the loss "
            "anew: call loss.backward() before it"
        )
    if step is None or step.state.is_over:
        raise UsageError(
            f"{user_line()}: optimizer.step() must be called once for each batch, "
            f"got {'a second one' if step else 'one outside of a loop over a dataloader'}"
        )
    if not step.has_gradients:
        raise UsageError(f"{user_line()}: optimizer.step() needs a loss.backward() before it")
    return step


def require_same_numbers(step: LoopStep, numbers: tuple[float, ...]) -> None:
    """Raises: UsageError where others were there when a value was read, and the step has run"""
    if step.numbers != numbers:
        raise UsageError(
            f"{user_line()}: lr or weight_decay changed between the value that was read and "
            "optimizer.step(), and the step has run: read values after optimizer.step()"
        )


def require_same_place(step: LoopStep, place: int) -> None:
    """Raises: UsageError where gradients were cleared since a value was read, and it has run"""
    if step.state.is_queued and step.place != place:
        raise UsageError(
            f"{user_line()}: gradients were cleared between a value that was read and "
            "backward(), and the batch's were added by then: read values behind backward()"
        )


def require_same_edits(step: LoopStep, variant: StepVariant) -> None:
    """Raises: UsageError where the step's gradients make it another part, and it has run"""
    if variant is not step.variant and step.state.is_queued:
        raise UsageError(
            f"{user_line()}: gradients are edited in another way than in the steps before, and "
            "this one has run, as a value of it was read: read values after optimizer.step()"
        )


def require_optimizer(optimization: Optimization | None) -> None:
    """Raises: UsageError for backward() in a Session that evaluates"""
    if optimization is None:
        raise UsageError(
            f"{user_line()}: the loop calls backward() in a Session that has no optimizer: "
            'give it one, and mode="train"'
        )


def require_training(optimization: Optimization | None) -> None:
    """Raises: UsageError for a number of the events where nothing is trained"""
    if optimization is None:
        raise UsageError(
            f"{user_line()}: cbtorch.summarize_scalar writes at a training's step, and this "
            'Session has none: print the value, or use mode="train"'
        )
