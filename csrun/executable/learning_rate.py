"""Learning-rate schedules: the learning rate of each step, as a function of the step index.

The structs are also the `learning_rate` section of a params file, where the key `scheduler` selects
one. Each schedule may begin with a warm-up: a linear rise from 0 to the schedule's first rate over
`warmup_steps` steps. The schedule counts its steps from the end of the warm-up.
"""

from bisect import bisect_right
from math import cos, pi
from typing import Annotated

import msgspec
from msgspec import Meta

from csrun.base.callers import CheckedStruct, first_invalid_field
from csrun.base.errors import UsageError

Rate = Annotated[float, Meta(ge=0)]
Steps = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]


class ScheduleError(UsageError, ValueError):
    """Inconsistent or invalid arguments of a schedule.

    A subclass of ValueError, so that the reader of a params file adds the position.
    """


class Warming(
    msgspec.Struct,
    metaclass=CheckedStruct,
    frozen=True,
    forbid_unknown_fields=True,
    tag_field="scheduler",
    tag="warming",
    kw_only=True,
):
    """Base class of schedules, with a linear warm-up.

    warmup_steps: number of steps of the warm-up, 0 for none.
    """

    warmup_steps: Count = 0

    def __post_init__(self) -> None:
        """Raises: ScheduleError for a number out of its range."""
        if problem := first_invalid_field(self):
            raise ScheduleError(problem)

    def at(self, step: int) -> float:
        """Return the learning rate of the update of global step `step`, from 0."""
        if step < self.warmup_steps:
            return self.after(0) * step / self.warmup_steps
        return self.after(step - self.warmup_steps)

    def after(self, step: int) -> float:
        """Return the learning rate `step` steps after the warm-up."""
        raise NotImplementedError


class Constant(Warming, frozen=True, forbid_unknown_fields=True, tag="constant"):
    """Constant learning rate."""

    learning_rate: Rate

    def after(self, step: int) -> float:
        return self.learning_rate


class Linear(Warming, frozen=True, forbid_unknown_fields=True, tag="linear"):
    """Linear interpolation from one rate to another over `steps` steps, then the second rate."""

    initial_learning_rate: Rate
    steps: Steps
    end_learning_rate: Rate = 0.0

    def after(self, step: int) -> float:
        """Weighted mean of both rates."""
        done = min(step / self.steps, 1.0)
        return self.initial_learning_rate * (1 - done) + self.end_learning_rate * done


class Cosine(Warming, frozen=True, forbid_unknown_fields=True, tag="cosine"):
    """Cosine annealing from one rate to another over `steps` steps, then the second rate.

    Source: Loshchilov and Hutter 2017, SGDR, equation 5, without restarts
    """

    initial_learning_rate: Rate
    steps: Steps
    end_learning_rate: Rate = 0.0

    def after(self, step: int) -> float:
        """Half a cosine period over the share of steps done."""
        share = (1 + cos(pi * min(step / self.steps, 1.0))) / 2
        return (
            self.end_learning_rate + (self.initial_learning_rate - self.end_learning_rate) * share
        )


class Polynomial(Warming, frozen=True, forbid_unknown_fields=True, tag="polynomial"):
    """Polynomial decay, (1 - step / steps) ** power, from one rate to another, then the second
    rate.
    """

    initial_learning_rate: Rate
    steps: Steps
    end_learning_rate: Rate = 0.0
    power: Annotated[float, Meta(gt=0)] = 1.0

    def after(self, step: int) -> float:
        """The share of the remaining steps, raised to the power."""
        share = float((1 - min(step / self.steps, 1.0)) ** self.power)
        return (
            self.end_learning_rate + (self.initial_learning_rate - self.end_learning_rate) * share
        )


class Exponential(Warming, frozen=True, forbid_unknown_fields=True, tag="exponential"):
    """Exponential decay: the rate is multiplied by `decay_rate` per `steps` steps, continuously."""

    initial_learning_rate: Rate
    steps: Steps
    decay_rate: Annotated[float, Meta(gt=0)]

    def after(self, step: int) -> float:
        """The rate times `decay_rate` ** (step / steps)."""
        return float(self.initial_learning_rate * self.decay_rate ** (step / self.steps))


class PiecewiseConstant(Warming, frozen=True, forbid_unknown_fields=True, tag="piecewise_constant"):
    """Piecewise constant rate: values[i] from step boundaries[i - 1] on.

    There is one value more than boundaries.
    """

    boundaries: tuple[Steps, ...]
    values: Annotated[tuple[Rate, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Raises: ScheduleError unless the boundaries rise, and there is one value more than
        boundaries
        """
        super().__post_init__()
        if len(self.values) != len(self.boundaries) + 1:
            raise ScheduleError(
                f"there must be one more value than boundaries, got {len(self.values)} values "
                f"and {len(self.boundaries)} boundaries"
            )
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ScheduleError(f"boundaries must increase, got {list(self.boundaries)}")

    def after(self, step: int) -> float:
        """The value of the interval that contains the step."""
        return self.values[bisect_right(self.boundaries, step)]


class StepNumber(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    tag="step_number",
    tag_field="scheduler",
):
    """Placeholder for a schedule: the rate is number `index` of the numbers passed with each
    step.
    """

    index: Count


Schedule = Constant | Linear | Cosine | Polynomial | Exponential | PiecewiseConstant
SCHEDULES: tuple[type[Schedule], ...] = (
    Constant,
    Linear,
    Cosine,
    Polynomial,
    Exponential,
    PiecewiseConstant,
)
