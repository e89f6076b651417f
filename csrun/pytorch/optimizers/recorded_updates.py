"""Optimizers recorded with the step: any kind, several in a step, in any order."""

from collections.abc import Collection, Mapping
from inspect import Parameter, signature
from typing import Any

import torch

from csrun.base.errors import CsrunError, UsageError
from csrun.cirh.algorithms import Algorithm
from csrun.executable.arrays import Array
from csrun.pytorch.errors import is_from_call, user_line
from csrun.pytorch.optimizers.first_state import create_state
from csrun.pytorch.optimizers.optimization import Optimization
from csrun.pytorch.record.model_group import ModelGroup


class RecordedUpdates(Optimization):
    """The optimizers of a group, whose updates are operators of the step.

    Their tensors are buffers of the group; counts and other numbers stay PyTorch's, on the host.

    Raises: UsageError, with the user's line, for parameters that belong to no model of the group
    """

    def __init__(self, group: ModelGroup) -> None:
        self.optimizer: Any = self  # shared by the Sessions of one run
        self.state: Mapping[Any, Any] = {}  # no state besides the group's buffers
        self._group, self._line = group, user_line()
        names = group.name_of
        for number, optimizer in enumerate(group.optimizers):
            params = [p for each in optimizer.param_groups for p in each["params"]]
            if any(id(p) not in names for p in params):
                raise UsageError(
                    f"{self._line}: optimizer {number} of the Session has a parameter that "
                    "belongs to none of its models: pass all trained models to the Session"
                )
            if needs_closure(optimizer):
                continue
            if any(group.get("dampening") for group in optimizer.param_groups):
                raise UsageError(
                    f"{self._line}: dampening of SGD differs in its first step, and is only "
                    "supported for one model and one optimizer: leave it out"
                )
            try:
                create_state(optimizer, params)
            except Exception as error:
                if isinstance(error, CsrunError) or not is_from_call(error):
                    raise
                remedy = ", such as the one that it wraps" if _is_wrapper(optimizer) else ""
                raise UsageError(
                    f"{self._line}: {type(optimizer).__name__} cannot take a step on gradients of "
                    f"zero, which creates its state: {type(error).__name__}: {error}: give the "
                    f"Session another optimizer{remedy}"
                ) from error
            for parameter in params:
                for key, value in optimizer.state.get(parameter, {}).items():
                    if _is_of_device(key, value, parameter):
                        group.hold_state(f"optimizer.{number}.{names[id(parameter)]}.{key}", value)

    def check_options(self) -> None:
        """Do nothing: PyTorch's own code computes with the options."""

    def algorithms(self, trained: Collection[str]) -> dict[str, Algorithm]:
        """Return an empty mapping: the step has the updates."""
        return {}

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters that the optimizers update."""
        groups = (each for one in self._group.optimizers for each in one.param_groups)
        return [p for group in groups for p in group["params"]]

    def numbers(self) -> tuple[float, ...]:
        """Return no numbers: changing ones are inputs of the step."""
        return ()

    def require_new(self) -> None:
        """Do nothing: existing state of an optimizer is used."""

    def loaded(self) -> tuple[dict[str, torch.Tensor], int]:
        """Return an empty state: loaded state is in the group's buffers."""
        return {}, 0

    def give_back(self, state: Mapping[str, Array], steps: int, trained: Collection[str]) -> None:
        """Do nothing: the group's buffers are the optimizers' own tensors."""


def needs_closure(optimizer: torch.optim.Optimizer) -> bool:
    """True for an optimizer that evaluates the loss repeatedly, such as LBFGS."""
    closure = signature(type(optimizer).step).parameters.get("closure")
    return closure is not None and closure.default is Parameter.empty


def _is_wrapper(optimizer: torch.optim.Optimizer) -> bool:
    """True for an optimizer that has another one as an attribute."""
    return any(isinstance(each, torch.optim.Optimizer) for each in vars(optimizer).values())


def _is_of_device(key: str, value: Any, parameter: torch.Tensor) -> bool:
    """True for a tensor of an optimizer's state that the step computes with."""
    if not isinstance(value, torch.Tensor) or not value.is_floating_point():
        return False
    return value.dim() > 0 or (value.shape == parameter.shape and key != "step")
