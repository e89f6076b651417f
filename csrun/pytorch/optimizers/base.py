"""An optimizer of PyTorch as a learning algorithm of CIRH, and its state there and here."""

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
class EachStep:
    """What comes with each step: the rate of a group, its weight decay if it has one.

    cycled: momentum or beta1, where a scheduler cycles it.
    """

    rate: StepNumberAttr
    decay: StepNumberAttr | float
    cycled: StepNumberAttr | None = None

    def momentum(self, group: Group) -> StepNumberAttr | float:
        """Return a group's momentum."""
        return self.cycled or float(group["momentum"])

    def betas(self, group: Group) -> tuple[StepNumberAttr | float, float]:
        """Return what a group's moments keep of themselves."""
        beta1, beta2 = map(float, group["betas"])
        return self.cycled or beta1, beta2


class Rule(ABC):
    """One kind of PyTorch's optimizers.

    kind: its class. must_be: options that csrun knows in one form only, and that form. fixed:
    options that are part of the compiled program and stay as they are. cycled: the one of them
    that OneCycleLR and CyclicLR change, `momentum` or `betas`, if that is known here.
    """

    kind: ClassVar[type[torch.optim.Optimizer]]
    must_be: ClassVar[Mapping[str, Any]] = {"differentiable": False}
    fixed: ClassVar[tuple[str, ...]]
    cycled: ClassVar[str | None] = None

    @abstractmethod
    def algorithm(self, group: Group, each: EachStep) -> Algorithm:
        """What updates the parameters of a group."""

    @abstractmethod
    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        """A parameter's state as PyTorch's optimizer has it after so many steps."""

    def cycled_momentum(self, group: Group) -> float | None:
        """Return what a scheduler cycles, as it is now; None where none does."""
        if self.cycled is None or "max_momentum" not in group:  # both schedulers leave it there
            return None
        found = group[self.cycled]
        return float(found[0] if self.cycled == "betas" else found)

    def fixed_options(self, group: Group) -> tuple[Any, ...]:
        """Return the options that are part of the program, in the order of `fixed`."""
        found = {name: group.get(name) for name in self.fixed}
        if self.cycled and self.cycled_momentum(group) is not None:
            found[self.cycled] = group["betas"][1:] if self.cycled == "betas" else None
        return tuple(found.values())

    def counts_steps(self, group: Group) -> bool:
        """Whether an update depends on how many there were."""
        return False

    def check(self, group: Group, where: str) -> None:
        """Raises: UsageError for an option that csrun does not have"""
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


def counted(steps: int) -> torch.Tensor:
    """A count of steps as PyTorch's optimizers keep it."""
    return torch.tensor(float(steps))
