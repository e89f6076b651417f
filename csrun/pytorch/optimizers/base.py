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
    """What comes with each step: the rate of a group, and its weight decay if it has one."""

    rate: StepNumberAttr
    decay: StepNumberAttr | float


class Rule(ABC):
    """One kind of PyTorch's optimizers.

    kind: its class. must_be: options that csrun knows in one form only, and that form. fixed:
    options that are part of the compiled program and stay as they are.
    """

    kind: ClassVar[type[torch.optim.Optimizer]]
    must_be: ClassVar[Mapping[str, Any]] = {"maximize": False, "differentiable": False}
    fixed: ClassVar[tuple[str, ...]]

    @abstractmethod
    def algorithm(self, group: Group, each: EachStep) -> Algorithm:
        """What updates the parameters of a group."""

    @abstractmethod
    def state(self, slots: Slots, group: Group, steps: int) -> dict[str, Any]:
        """A parameter's state as PyTorch's optimizer has it after so many steps."""

    def counts_steps(self, group: Group) -> bool:
        """Whether an update depends on how many there were."""
        return False

    def check(self, group: Group, line: str) -> None:
        """Raises: UsageError for an option that csrun does not have"""
        for name, form in self.must_be.items():
            if group.get(name, form) != form:
                raise UsageError(
                    f"{line}: {self.kind.__name__}({name}={group[name]!r}) is not there: leave "
                    f"{name} out, or give {form!r}"
                )


def counted(steps: int) -> torch.Tensor:
    """A count of steps as PyTorch's optimizers keep it."""
    return torch.tensor(float(steps))
