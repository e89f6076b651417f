"""Rules that convert PyTorch's optimizers to CIRH's learning algorithms, and their state both
ways.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from csrun.base.errors import UsageError
from csrun.cirh.algorithms import Algorithm, StepNumberAttr

Group = Mapping[str, Any]  # of an optimizer's param_groups
Slots = Mapping[str, torch.Tensor]  # the optimizer state of one parameter in the store, by name


@dataclass(frozen=True)
class GroupNumbers:
    """Per-step numbers of a param_group: learning rate, and weight decay unless it is 0.

    cycled: momentum or beta1, if a scheduler cycles it.
    """

    rate: StepNumberAttr
    decay: StepNumberAttr | float
    cycled: StepNumberAttr | None = None

    def momentum(self, group: Group) -> StepNumberAttr | float:
        """Return a group's momentum, cycled or constant."""
        return self.cycled or float(group["momentum"])

    def betas(self, group: Group) -> tuple[StepNumberAttr | float, float]:
        """Return a group's betas; beta1 may be cycled."""
        beta1, beta2 = map(float, group["betas"])
        return self.cycled or beta1, beta2


class OptimizerRule(ABC):
    """Rule of one PyTorch optimizer.

    kind: its class.
    must_be: options that are supported with only one value, and that value.
    fixed: options that are compiled into the program and must not change.
    cycled: the one of them that OneCycleLR and CyclicLR change, `momentum` or `betas`, if that is
        supported.
    builds_state_from: options from which its constructor creates state.
    """

    kind: ClassVar[type[torch.optim.Optimizer]]
    must_be: ClassVar[Mapping[str, Any]] = {"differentiable": False}
    fixed: ClassVar[tuple[str, ...]]
    cycled: ClassVar[str | None] = None
    builds_state_from: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def algorithm(self, group: Group, each: GroupNumbers) -> Algorithm:
        """Return the algorithm that updates a group's parameters."""

    @abstractmethod
    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        """Return a parameter's state in PyTorch's form after this many steps."""

    def cycled_momentum(self, group: Group) -> float | None:
        """Return the current value of the option that a scheduler cycles; None if none does."""
        if self.cycled is None or "max_momentum" not in group:  # both schedulers add this key
            return None
        found = group[self.cycled]
        return float(found[0] if self.cycled == "betas" else found)

    def fixed_options(self, group: Group) -> tuple[Any, ...]:
        """Return the options that are compiled into the program, in the order of `fixed`."""
        if self.cycled is None or self.cycled_momentum(group) is None:
            return tuple(map(group.get, self.fixed))
        found = {name: group.get(name) for name in self.fixed}
        found[self.cycled] = group["betas"][1:] if self.cycled == "betas" else None
        return tuple(found.values())

    @abstractmethod
    def slots(self, state: Mapping[str, Any], group: Group) -> dict[str, torch.Tensor]:
        """Return a parameter's state in the store's form, from PyTorch's."""

    def steps_of(self, state: Mapping[str, Any], group: Group) -> int:
        """Return the step count of a parameter's state; 0 if it has none."""
        return int(state.get("step", 0))

    def updates_of(self, state: Mapping[str, Any], group: Group) -> int:
        """Return how many updates have made a parameter's state, as far as the next depends on
        it.
        """
        return self.steps_of(state, group)

    def decay(self, group: Group) -> float:
        """Return a group's weight decay."""
        return float(group["weight_decay"])

    def has_begun(self, state: Mapping[str, Any]) -> bool:
        """True for the state of a parameter after its first step."""
        return float(state.get("step", 0)) > 0 or state.get("momentum_buffer") is not None

    def counts_steps(self, group: Group) -> bool:
        """True if an update depends on the number of steps."""
        return False

    def check(self, group: Group, where: str) -> None:
        """Raises: UsageError for an option that is not supported"""
        for name, form in self.must_be.items():
            if group.get(name, form) != form:
                raise UsageError(
                    f"{where}: {self.kind.__name__}({name}={group[name]!r}) is not supported: "
                    f"leave {name} out, or give {form!r}"
                )
        if group.get("eps", 1.0) <= 0:
            raise UsageError(
                f"{where}: eps must be > 0, got {group['eps']} (PyTorch allows 0): give a small "
                "number such as 1e-8"
            )


def step_tensor(steps: int) -> torch.Tensor:
    """Return a step count as a tensor, as PyTorch's optimizers keep it."""
    return torch.tensor(float(steps))
