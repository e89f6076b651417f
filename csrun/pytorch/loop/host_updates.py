"""Updates computed on the host, as in LBFGS, which decides by values how often it needs the loss.

The wafer computes each loss and its gradients, which are read back. The weights that the optimizer
writes are copied to the store, like those that the loop writes between two steps.
"""

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.loop.user_state import UserState
from csrun.pytorch.record.traced import TracedTensor

log = logging.getLogger("csrun")
_said: set[str] = set()  # lines of such updates


class LoopOnWafer(Protocol):
    """The loop, as used here."""

    user: UserState

    def end_step(self) -> None:
        """End the current step."""

    def run_step(self, values: Sequence[TracedTensor]) -> list[torch.Tensor]:
        """End the current step and return values of it."""


def update_on_host(
    loop: LoopOnWafer,
    optimizer: torch.optim.Optimizer,
    own: Callable[..., Any],
    closure: Callable[[], Any] | None,
) -> Any:
    """Call an optimizer's step, whose closure runs on the wafer.

    Raises: UsageError without a closure that calls backward(), and in a resumed run, whose store
    lacks the host's updates after its checkpoint
    """
    if loop.user.is_replayed:
        raise UsageError(
            f"{user_line()}: a run with {type(optimizer).__name__}, whose updates the host "
            "computes, cannot be resumed: begin in a new model_dir"
        )
    if (line := user_line()) not in _said:
        _said.add(line)
        log.info(
            f"{line}: {type(optimizer).__name__} computes its updates on the host, with the "
            "gradients read back; the wafer computes the closure"
        )
    params = [p for group in optimizer.param_groups for p in group["params"]]

    def on_wafer() -> Any:
        if closure is None:
            raise UsageError(f"{line}: {type(optimizer).__name__}.step() needs a closure")
        loop.end_step()
        loss = closure()
        trained = [p for p in params if isinstance(p.grad, TracedTensor)]
        if not isinstance(loss, TracedTensor) or not trained:
            raise UsageError(
                f"{line}: the closure must call backward() on the loss and return the loss"
            )
        number, *gradients = loop.run_step([loss, *(p.grad for p in trained)])
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.grad = gradient.clone()
        loop.user.copy_back()
        loop.user.note_shared()  # the optimizer will write the weights
        return number

    return own(on_wafer)
