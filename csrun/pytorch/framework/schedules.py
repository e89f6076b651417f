"""Learning rate schedules of the original, as functions of the step.

Each is registered with the optimizer that it is created with. Several schedules of one optimizer
follow each other: each starts after the `decay_steps` of the previous ones, and counts its own
steps from there or, with `disable_lr_steps_reset`, continues with the global step.
"""

import math
from collections.abc import Sequence
from typing import Protocol


class Scheduled(Protocol):
    """The optimizer, as used by a schedule."""

    schedules: list["Schedule"]


class Schedule:
    """Learning rate as a function of the step; decay_steps: step at which the next schedule starts,
    if any.
    """

    def __init__(
        self, optimizer: Scheduled, decay_steps: int | None, disable_lr_steps_reset: bool
    ) -> None:
        self.decay_steps, self.counts_globally = decay_steps, disable_lr_steps_reset
        optimizer.schedules.append(self)

    def rate(self, step: int) -> float:
        """Return the learning rate of a step."""
        raise NotImplementedError


class Constant(Schedule):
    """val."""

    def __init__(
        self,
        optimizer: Scheduled,
        val: float,
        decay_steps: int | None = None,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        super().__init__(optimizer, decay_steps, disable_lr_steps_reset)
        self._val = float(val)

    def rate(self, step: int) -> float:
        return self._val


class Polynomial(Schedule):
    """(first - end) (1 - step / decay_steps)^power + end; end from decay_steps on.

    cycle: decay_steps is multiplied by the number of cycles begun.
    """

    def __init__(
        self,
        optimizer: Scheduled,
        learning_rate: float,
        end_learning_rate: float,
        decay_steps: int,
        power: float = 1.0,
        cycle: bool = False,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        super().__init__(optimizer, decay_steps, disable_lr_steps_reset)
        self._first, self._end = float(learning_rate), float(end_learning_rate)
        self._steps, self._power, self._cycles = decay_steps, power, cycle

    def rate(self, step: int) -> float:
        if step >= self._steps:
            return self._end
        begun = math.ceil((step + 1) / self._steps) if self._cycles else 1
        share = 1 - step / (self._steps * begun)
        return (self._first - self._end) * float(share**self._power) + self._end


class Exponential(Schedule):
    """learning_rate decay_rate^(step / decay_steps). staircase: integer exponent."""

    def __init__(
        self,
        optimizer: Scheduled,
        learning_rate: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        super().__init__(optimizer, decay_steps, disable_lr_steps_reset)
        self._first, self._decay, self._is_staircase = float(learning_rate), decay_rate, staircase
        self._steps = decay_steps

    def rate(self, step: int) -> float:
        power = step / self._steps
        return self._first * float(self._decay) ** (
            math.floor(power) if self._is_staircase else power
        )


class InverseExponentialTimeDecay(Schedule):
    """learning_rate / (1 + decay_rate step^step_exponent / decay_steps)."""

    def __init__(
        self,
        optimizer: Scheduled,
        learning_rate: float,
        step_exponent: float,
        decay_steps: int,
        decay_rate: float,
        staircase: bool = False,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        super().__init__(optimizer, decay_steps, disable_lr_steps_reset)
        self._first, self._exponent = float(learning_rate), step_exponent
        self._steps, self._decay, self._is_staircase = decay_steps, decay_rate, staircase

    def rate(self, step: int) -> float:
        alpha = float(float(step) ** self._exponent) / self._steps
        alpha = math.floor(alpha) if self._is_staircase else alpha
        return self._first / (1 + alpha * self._decay)


class CosineDecay(Schedule):
    """Half a cosine from the first rate to the last one, constant from decay_steps on."""

    def __init__(
        self,
        optimizer: Scheduled,
        learning_rate: float,
        end_learning_rate: float,
        decay_steps: int,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        super().__init__(optimizer, decay_steps, disable_lr_steps_reset)
        self._first, self._end = float(learning_rate), float(end_learning_rate)
        self._steps = decay_steps

    def rate(self, step: int) -> float:
        progress = (1 + math.cos(math.pi * min(step, self._steps) / self._steps)) / 2
        return progress * (self._first - self._end) + self._end


class CosineAnnealing(Schedule):
    """Cosine between learning_rate and eta_min, with a period of 2 T_max."""

    def __init__(
        self,
        optimizer: Scheduled,
        learning_rate: float,
        T_max: int,  # noqa: N803  PyTorch's name
        eta_min: float = 0.0,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        super().__init__(optimizer, None, disable_lr_steps_reset)
        self._first, self._half, self._least = float(learning_rate), T_max, float(eta_min)

    def rate(self, step: int) -> float:
        share = (1 + math.cos(math.pi * step / self._half)) / 2
        return share * (self._first - self._least) + self._least


class Step(Schedule):
    """learning_rate gamma^(step // step_size)."""

    def __init__(
        self,
        optimizer: Scheduled,
        learning_rate: float,
        gamma: float,
        step_size: int,
        disable_lr_steps_reset: bool = False,
    ) -> None:
        super().__init__(optimizer, None, disable_lr_steps_reset)
        self._first, self._gamma, self._size = float(learning_rate), float(gamma), step_size

    def rate(self, step: int) -> float:
        return self._first * self._gamma ** (step // self._size)


class MultiStep(Schedule):
    """learning_rate gamma^n, n the number of milestones reached."""

    def __init__(
        self,
        optimizer: Scheduled,
        learning_rate: float,
        gamma: float,
        milestones: Sequence[int],
        disable_lr_steps_reset: bool = False,
    ) -> None:
        super().__init__(optimizer, None, disable_lr_steps_reset)
        self._first, self._gamma, self._milestones = float(learning_rate), gamma, list(milestones)

    def rate(self, step: int) -> float:
        return self._first * float(self._gamma) ** sum(step >= at for at in self._milestones)


class Lambda(Schedule):
    """learning_rate 0.95^step, the last of the original's two functions."""

    def __init__(
        self, optimizer: Scheduled, learning_rate: float, disable_lr_steps_reset: bool = False
    ) -> None:
        super().__init__(optimizer, None, disable_lr_steps_reset)
        self._first = float(learning_rate)

    def rate(self, step: int) -> float:
        return self._first * 0.95**step


def rate_at(schedules: Sequence[Schedule], step: int) -> float:
    """Return the learning rate of a global step in a sequence of schedules."""
    start = 0
    for schedule in schedules[:-1]:
        if schedule.decay_steps is None or step < start + schedule.decay_steps:
            break
        start += schedule.decay_steps
    else:
        schedule = schedules[-1]
    return schedule.rate(step if schedule.counts_globally else step - start)
