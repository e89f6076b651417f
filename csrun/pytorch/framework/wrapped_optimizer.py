"""Wrapper of the script's optimizer: applies schedules and clipping at `step()`."""

import gc
from collections.abc import Callable
from typing import Any

import torch

from csrun.base.errors import UsageError
from csrun.pytorch.errors import user_line
from csrun.pytorch.framework.schedules import Schedule, rate_at
from csrun.pytorch.framework.script import script


class Optimizer:
    """Wrapper of a torch optimizer.

    gradient_clipper: called with the model's parameters before each step.
    schedules: of the learning rate, in order; without any, the script sets the rate of each group.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self.gradient_clipper: Callable[[list[torch.Tensor]], Any] | None = None
        self.schedules: list[Schedule] = []
        self._first_step: int | None = None

    def step(self, closure: Any = None) -> None:
        """Update the parameters."""
        state = script.state
        if self.schedules:
            rate = rate_at(self.schedules, self._begun_at + state.run_step)
            for group in self._optimizer.param_groups:
                group["lr"] = rate
        if self.gradient_clipper is not None and state.model is not None:
            self.gradient_clipper(list(state.model.parameters()))
        self._optimizer.step() if closure is None else self._optimizer.step(closure)
        state.run_step += 1

    @property
    def _begun_at(self) -> int:
        """Global step at which this run began, used by the script's own schedulers."""
        if self._first_step is None:
            kind = torch.optim.lr_scheduler.LRScheduler
            owners = (each for each in gc.get_objects() if issubclass(type(each), kind))
            own = [x for x in owners if vars(x).get("cb_scheduler") in self.schedules]
            self._first_step = max((int(getattr(x, "initial_epoch", 0)) for x in own), default=0)
        return self._first_step

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Groups of parameters of the script's optimizer."""
        groups: list[dict[str, Any]] = self._optimizer.param_groups
        return groups

    @property
    def state(self) -> Any:
        """State of the script's optimizer."""
        return self._optimizer.state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients."""
        self._optimizer.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last step, in the script's own form."""
        found: dict[str, Any] = self._optimizer.state_dict()
        return found

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a checkpoint, before the first step."""
        self._optimizer.load_state_dict(state)

    def convert_state_dict_for_checkpoint(self, state: dict[str, Any]) -> dict[str, Any]:
        """Convert a state to the form that plain PyTorch loads."""
        convert = getattr(self._optimizer, "convert_state_dict_for_checkpoint", None)
        converted: dict[str, Any] = state if convert is None else convert(state)
        return converted

    def set_main_lr_scheduler(self, scheduler: Any) -> None:
        """Ignore the scheduler of a run in weight streaming: the rate is passed with each step
        anyway.
        """


def optimizer(given: torch.optim.Optimizer) -> Optimizer:
    """Wrap the script's optimizer.

    Raises: UsageError for anything but an optimizer of torch
    """
    if not isinstance(given, torch.optim.Optimizer):
        raise UsageError(
            f"{user_line()}: cbtorch.optimizer takes a torch.optim.Optimizer, got "
            f"{type(given).__name__}"
        )
    script.state.optimizer = given
    return Optimizer(given)
