"""Base of the program's optimizers, and of those that look at whole parameters."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

from csrun.compiler.lair.formula import FormulaValue, Values
from csrun.executable.learning_rate import Schedule, StepNumber

CYCLED = "momentum"  # in the program's text, where it comes with each step


@dataclass(frozen=True)
class Optimizer(ABC):
    """Base of all optimizers.

    maximize: gradients are negated.
    """

    learning_rate: Schedule | StepNumber
    weight_decay: float | StepNumber
    maximize: bool

    @property
    def step_numbers(self) -> tuple[int, ...]:
        """Indices of the step numbers that it takes."""
        found = (self.learning_rate, self.weight_decay, self.cycled)
        return tuple(each.index for each in found if isinstance(each, StepNumber))

    @property
    def cycled(self) -> StepNumber | None:
        """Momentum or beta1, where it comes with each step: `momentum` in the program's text."""
        return None

    @property
    def decay(self) -> str:
        """The weight decay in the program's text, where a step's own is `weight_decay`."""
        by_step = isinstance(self.weight_decay, StepNumber)
        return "weight_decay" if by_step else repr(self.weight_decay)

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """Names of the optimizer's state tensors, one of each a parameter."""

    def first_value(self, slot: str) -> float:
        """The number that a slot begins with."""
        return 0.0

    def factors(self) -> list[str]:
        """Lines that compute a step's `rate`, and more, from `learning_rate` and `weight_decay`.

        `momentum` is there, too, where it comes with each step.
        """
        return ["rate = learning_rate"]

    @abstractmethod
    def update(self, old: Values) -> Values:
        """Next values of `weights` and slots, from these and `gradients`; `rate` is the step's."""

    def without_decay(self) -> Self:
        """The optimizer in a step whose weight decay is 0."""
        return replace(self, weight_decay=0.0)

    def decayed(self, values: FormulaValue, weights: FormulaValue) -> FormulaValue:
        """values + decay w."""
        return values + weights * self.decay if self.weight_decay else values


class PerTensor(Optimizer):
    """A parameter is updated in two loops: `update`, and when all of it has been seen, `finish`."""

    @abstractmethod
    def whole(self, squares: str) -> list[str]:
        """Lines between the loops; `squares()` gives the sums of the weights' and gradients'."""

    @abstractmethod
    def finish(self, old: Values) -> Values:
        """Next values computed in the second loop, from what the first one left."""


def cycled_of(momentum: float | StepNumber) -> StepNumber | None:
    """Return what comes with each step, None for a number that stays."""
    return momentum if isinstance(momentum, StepNumber) else None


def velocity_slot(rate_inside: bool) -> str:
    """Return the name of velocities; those that have the rates of their steps have their own."""
    return "velocity" if rate_inside else "momentum"


def text_of(momentum: float | StepNumber) -> float | str:
    """Return a momentum as formulas take it."""
    return CYCLED if isinstance(momentum, StepNumber) else momentum
