"""Base classes of the program's optimizers."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Self

from csrun.compiler.lair.formula import FormulaValue, Values
from csrun.executable.learning_rate import Schedule, StepNumber

# names in the program's text
CYCLED = "momentum"  # if it changes with each step
EARLIER = "earlier_updates"  # if some steps have not updated the parameter


@dataclass(frozen=True)
class Optimizer(ABC):
    """Base class of all optimizers.

    maximize: negate the gradients.
    earlier: number of the parameter's updates before this step, if some steps have not updated it.
    """

    learning_rate: Schedule | StepNumber
    weight_decay: float | StepNumber
    maximize: bool
    earlier: StepNumber | None = field(default=None, kw_only=True)

    @property
    def step_numbers(self) -> tuple[int, ...]:
        """Indices of the step numbers that it uses."""
        found = (self.learning_rate, self.weight_decay, self.cycled, self.earlier)
        return tuple(each.index for each in found if isinstance(each, StepNumber))

    @property
    def cycled(self) -> StepNumber | None:
        """Momentum or beta1 that changes with each step: `momentum` in the program's text."""
        return None

    @property
    def index(self) -> str:
        """Number of earlier updates in the program's text."""
        return "step.updates" if self.earlier is None else EARLIER

    @property
    def decay(self) -> str:
        """Weight decay in the program's text; `weight_decay` if it changes with each step."""
        by_step = isinstance(self.weight_decay, StepNumber)
        return "weight_decay" if by_step else repr(self.weight_decay)

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """Names of the optimizer's state tensors, one of each per parameter."""

    def first_value(self, slot: str) -> float:
        """Return the initial value of a slot."""
        return 0.0

    def factors(self) -> list[str]:
        """Return lines that compute a step's `rate`, and more, from `learning_rate` and
        `weight_decay`.

        `momentum` is defined, too, if it changes with each step.
        """
        return ["rate = learning_rate"]

    @abstractmethod
    def update(self, old: Values) -> Values:
        """Return the next values of `weights` and slots, from these and `gradients`; `rate` is the
        step's.
        """

    def without_decay(self) -> Self:
        """Return the optimizer for a step without weight decay."""
        return replace(self, weight_decay=0.0)

    def decayed(self, values: FormulaValue, weights: FormulaValue) -> FormulaValue:
        """Return values + decay w."""
        return values + weights * self.decay if self.weight_decay else values


class PerTensor(Optimizer):
    """Optimizer with per-tensor norms, in two loops: `update`, then `finish` after all of the
    tensor.
    """

    @abstractmethod
    def whole(self, squares: str) -> list[str]:
        """Return lines between the loops; `squares()` returns the sums of squares of weights and
        gradients.
        """

    @abstractmethod
    def finish(self, old: Values) -> Values:
        """Return the next values computed in the second loop, from the results of the first one."""


def cycled_of(momentum: float | StepNumber) -> StepNumber | None:
    """Return the index of a number that changes with each step, None for a constant."""
    return momentum if isinstance(momentum, StepNumber) else None


def velocity_slot(rate_inside: bool) -> str:
    """Return the slot of velocities; velocities that include the rate have another name."""
    return "velocity" if rate_inside else "momentum"


def text_of(momentum: float | StepNumber) -> float | str:
    """Return a momentum as formulas need it."""
    return CYCLED if isinstance(momentum, StepNumber) else momentum
