"""Learning-rate schedules: what a program's updates, and the log, take from the step's index.

The structs are also what a params file's `learning_rate` section may hold, told apart by the key
`scheduler`. Each begins, if asked, with a warm-up: a linear rise from 0 over `warmup_steps` steps
to the rate that the schedule starts with; the schedule's own steps count from the warm-up's end.
"""

from bisect import bisect_right
from math import cos, pi
from typing import Annotated

import msgspec
from msgspec import Meta

from csrun.base.callers import CheckedStruct, first_misfit
from csrun.base.errors import UsageError

Rate = Annotated[float, Meta(ge=0)]
Steps = Annotated[int, Meta(ge=1)]
Count = Annotated[int, Meta(ge=0)]


class ScheduleError(UsageError, ValueError):
    """Numbers of a schedule that do not fit each other; a ValueError too, so that the reader of a
    params file adds the place.
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
    """Base of the schedules: the warm-up."""

    warmup_steps: Count = 0

    def __post_init__(self) -> None:
        """Raises: ScheduleError for a number out of its range."""
        if problem := first_misfit(self):
            raise ScheduleError(problem)

    def at(self, step: int) -> float:
        """The rate of the update that global step `step` (from 0) makes."""
        if step < self.warmup_steps:
            return self.after(0) * step / self.warmup_steps
        return self.after(step - self.warmup_steps)

    def after(self, step: int) -> float:
        """The rate `step` steps after the warm-up."""
        raise NotImplementedError


class Constant(Warming, frozen=True, forbid_unknown_fields=True, tag="constant"):
    """The same rate at every step."""

    learning_rate: Rate

    def after(self, step: int) -> float:
        return self.learning_rate


class Linear(Warming, frozen=True, forbid_unknown_fields=True, tag="linear"):
    """A straight line from one rate to another, and that one from `steps` on."""

    initial_learning_rate: Rate
    steps: Steps
    end_learning_rate: Rate = 0.0

    def after(self, step: int) -> float:
        """A weighted mean of both ends."""
        done = min(step / self.steps, 1.0)
        return self.initial_learning_rate * (1 - done) + self.end_learning_rate * done


class Cosine(Warming, frozen=True, forbid_unknown_fields=True, tag="cosine"):
    """Half a cosine wave from one rate down to another, and that one from `steps` on.

    Source: Loshchilov and Hutter 2017, SGDR, equation 5, without restarts
    """

    initial_learning_rate: Rate
    steps: Steps
    end_learning_rate: Rate = 0.0

    def after(self, step: int) -> float:
        """The wave at the share of steps done."""
        share = (1 + cos(pi * min(step / self.steps, 1.0))) / 2
        return (
            self.end_learning_rate + (self.initial_learning_rate - self.end_learning_rate) * share
        )


class Polynomial(Warming, frozen=True, forbid_unknown_fields=True, tag="polynomial"):
    """From one rate to another as (1 - step / steps) to a power, and that one from `steps` on."""

    initial_learning_rate: Rate
    steps: Steps
    end_learning_rate: Rate = 0.0
    power: Annotated[float, Meta(gt=0)] = 1.0

    def after(self, step: int) -> float:
        """The power of the share of steps left."""
        share = float((1 - min(step / self.steps, 1.0)) ** self.power)
        return (
            self.end_learning_rate + (self.initial_learning_rate - self.end_learning_rate) * share
        )


class Exponential(Warming, frozen=True, forbid_unknown_fields=True, tag="exponential"):
    """The rate times `decay_rate` every `steps` steps, a little less at each."""

    initial_learning_rate: Rate
    steps: Steps
    decay_rate: Annotated[float, Meta(gt=0)]

    def after(self, step: int) -> float:
        """The power of the decay."""
        return float(self.initial_learning_rate * self.decay_rate ** (step / self.steps))


class PiecewiseConstant(Warming, frozen=True, forbid_unknown_fields=True, tag="piecewise_constant"):
    """values[i] from step boundaries[i - 1] on; one value more than there are boundaries."""

    boundaries: tuple[Steps, ...]
    values: Annotated[tuple[Rate, ...], Meta(min_length=1)]

    def __post_init__(self) -> None:
        """Raises: ScheduleError unless boundaries rise, and are one fewer than the values."""
        super().__post_init__()
        if len(self.values) != len(self.boundaries) + 1:
            raise ScheduleError(
                f"there must be one more value than boundaries, got {len(self.values)} values "
                f"and {len(self.boundaries)} boundaries"
            )
        if list(self.boundaries) != sorted(set(self.boundaries)):
            raise ScheduleError(f"boundaries must increase, got {list(self.boundaries)}")

    def after(self, step: int) -> float:
        """The value of the piece that the step lies in."""
        return self.values[bisect_right(self.boundaries, step)]


class StepNumber(
    msgspec.Struct,
    frozen=True,
    forbid_unknown_fields=True,
    tag="step_number",
    tag_field="scheduler",
):
    """No schedule: number `index` of those that come with each step."""

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
