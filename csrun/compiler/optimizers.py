"""Optimizers as the program's update functions see them: flat arrays, a few calls in place.

What is made on the way is in a tile of scratch, which stays in the cache: gradients that are
written over go to memory once more. They are spent all the same, where one tile is too little.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import msgspec
from xdsl.dialects import builtin

from csrun.cirh.algorithms import (
    AdagradAttr,
    AdamAttr,
    LambAttr,
    RmsPropAttr,
    ScheduleAttr,
    SgdAttr,
    StepNumberAttr,
)
from csrun.cirh.ops.learning import UpdatingOp
from csrun.executable.learning_rate import Schedule, StepNumber


@dataclass(frozen=True)
class Optimizer(ABC):
    """What all optimizers share.

    first_slot_value: of all slots.
    """

    learning_rate: Schedule | StepNumber
    weight_decay: float | StepNumber

    @property
    def step_numbers(self) -> tuple[int, ...]:
        """Which of a step's numbers it takes."""
        found = (self.learning_rate, self.weight_decay)
        return tuple(each.index for each in found if isinstance(each, StepNumber))

    @property
    def decay(self) -> str:
        """The weight decay in the program's text, where a step's own is `weight_decay`."""
        by_step = isinstance(self.weight_decay, StepNumber)
        return "weight_decay" if by_step else repr(self.weight_decay)

    @property
    @abstractmethod
    def slots(self) -> tuple[str, ...]:
        """Names of the optimizer's state tensors, one of each a parameter."""

    @property
    def first_slot_value(self) -> float:
        return 0.0

    def factors(self) -> list[str]:
        """Lines that compute a step's factors from `learning_rate` and `weight_decay`."""
        return []

    @abstractmethod
    def emit(self, weights: str, gradients: str, slots: Sequence[str], scratch: str) -> list[str]:
        """The update of flat arrays; scratch is one of their size."""

    def decayed(self, values: str, weights: str, scratch: str) -> list[str]:
        """values + decay w, in place."""
        if not self.weight_decay:
            return []
        lines = [
            f"multiply({weights}, {self.decay}, out={scratch})",
            f"add({values}, {scratch}, out={values})",
        ]
        is_by_step = isinstance(self.weight_decay, StepNumber)
        return [f"if {self.decay}:", *(f"    {line}" for line in lines)] if is_by_step else lines


class PerTensor(Optimizer):
    """A parameter is updated in two passes: `emit`, and when all of it has been seen, `finish`."""

    @abstractmethod
    def whole(self, squares: str) -> list[str]:
        """Lines between the passes; `squares()` gives the sums of the weights' and gradients'."""

    @abstractmethod
    def finish(self, weights: str, gradients: str) -> list[str]:
        """The second pass."""


@dataclass(frozen=True)
class Sgd(Optimizer):
    """v = momentum v + g; w = w - learning_rate v. Without momentum v is g.

    Source: Sutskever et al. 2013, section 2, in the form of torch.optim.SGD
    """

    momentum: float
    nesterov: bool

    @property
    def slots(self) -> tuple[str, ...]:
        return ("momentum",) if self.momentum else ()

    def emit(self, weights: str, gradients: str, slots: Sequence[str], scratch: str) -> list[str]:
        lines, direction = self.decayed(gradients, weights, scratch), gradients
        if self.momentum:
            (direction,) = slots
            lines.append(f"multiply({direction}, {self.momentum!r}, out={direction})")
            lines.append(f"add({direction}, {gradients}, out={direction})")
        if self.nesterov:
            lines.append(f"multiply({direction}, {self.momentum!r}, out={scratch})")
            lines.append(f"add({scratch}, {gradients}, out={scratch})")
            direction = scratch
        lines.append(f"multiply({direction}, learning_rate, out={scratch})")
        lines.append(f"subtract({weights}, {scratch}, out={weights})")
        return lines


@dataclass(frozen=True)
class Moments(Optimizer):
    """m = beta1 m + g; v = beta2 v + g g; a direction m / (sqrt(v) + epsilon).

    The slots are sums, not means: a factor (1 - beta) smaller they are Adam's moments. That saves
    two passes over each array; the factors, and the correction of the moments' bias, go into the
    step's `epsilon` and `rate`.

    Source: Kingma and Ba 2015, algorithm 1, with the order of operations of the end of section 2
    """

    beta1: float
    beta2: float
    epsilon: float
    bias_correction: bool

    @property
    def slots(self) -> tuple[str, ...]:
        return ("gradient_sum", "square_sum")

    def correction(self, rate: str, epsilon_hat: bool = False) -> list[str]:
        """Lines for `epsilon`, and for `rate`: that which is given times the moments' factors.

        epsilon_hat: epsilon is added to the root of v before its bias is corrected
        """
        if not self.bias_correction:
            unbias = f"{(1 - self.beta2) ** -0.5!r}"
            return [
                f"epsilon = {self.epsilon!r} * {unbias}",
                f"rate = {rate}{unbias} * {1 - self.beta1!r}",
            ]
        added = f"{(1 - self.beta2) ** -0.5!r}" if epsilon_hat else "unbias"
        return [
            f"unbias = ((1 - {self.beta2!r} ** (step.index + 1)) / {1 - self.beta2!r}) ** 0.5",
            f"epsilon = {self.epsilon!r} * {added}",
            f"rate = {rate}unbias * {1 - self.beta1!r} / (1 - {self.beta1!r} ** (step.index + 1))",
        ]

    def direction(self, gradients: str, slots: Sequence[str], out: str) -> list[str]:
        """The moments, and the direction, which may take the gradients' place."""
        sums, squares = slots
        return [
            f"multiply({sums}, {self.beta1!r}, out={sums})",
            f"add({sums}, {gradients}, out={sums})",
            f"multiply({gradients}, {gradients}, out={out})",
            f"multiply({squares}, {self.beta2!r}, out={squares})",
            f"add({squares}, {out}, out={squares})",
            f"sqrt({squares}, out={out})",
            f"add({out}, epsilon, out={out})",
            f"divide({sums}, {out}, out={out})",
            f"multiply({out}, rate, out={out})",
        ]


@dataclass(frozen=True)
class Adam(Moments):
    """w = w - rate m / (sqrt(v) + epsilon).

    Source: Kingma and Ba 2015, algorithm 1; decoupled: Loshchilov and Hutter 2019, algorithm 2
    """

    decoupled: bool
    epsilon_hat: bool

    def factors(self) -> list[str]:
        lines = self.correction("learning_rate * ", self.epsilon_hat)
        if self.decoupled and self.weight_decay:
            lines.append(f"kept = 1 - learning_rate * {self.decay}")
        return lines

    def emit(self, weights: str, gradients: str, slots: Sequence[str], scratch: str) -> list[str]:
        lines = [] if self.decoupled else self.decayed(gradients, weights, scratch)
        if self.decoupled and self.weight_decay:
            lines.append(f"multiply({weights}, kept, out={weights})")
        return [
            *lines,
            *self.direction(gradients, slots, scratch),
            f"subtract({weights}, {scratch}, out={weights})",
        ]


@dataclass(frozen=True)
class Lamb(Moments, PerTensor):
    """u = rate m / (sqrt(v) + epsilon) + weight_decay w; w = w - learning_rate (|w| / |u|) u.

    Source: You et al. 2020, algorithm 2
    """

    def factors(self) -> list[str]:
        return self.correction("")

    def emit(self, weights: str, gradients: str, slots: Sequence[str], scratch: str) -> list[str]:
        return [
            *self.direction(gradients, slots, gradients),
            *self.decayed(gradients, weights, scratch),
        ]

    def whole(self, squares: str) -> list[str]:
        return [f"rate = learning_rate * trust_ratio(*{squares}())"]

    def finish(self, weights: str, gradients: str) -> list[str]:
        return [
            f"multiply({gradients}, rate, out={gradients})",
            f"subtract({weights}, {gradients}, out={weights})",
        ]


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """s = s + g g; w = w - rate g / (sqrt(s) + epsilon).

    Source: Duchi et al. 2011, section 1.1, in the form of torch.optim.Adagrad
    """

    lr_decay: float
    initial_accumulator: float
    epsilon: float

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square_sum",)

    @property
    def first_slot_value(self) -> float:
        return self.initial_accumulator

    def factors(self) -> list[str]:
        return [f"rate = learning_rate / (1 + step.index * {self.lr_decay!r})"]

    def emit(self, weights: str, gradients: str, slots: Sequence[str], scratch: str) -> list[str]:
        (squares,) = slots
        return [
            *self.decayed(gradients, weights, scratch),
            f"multiply({gradients}, {gradients}, out={scratch})",
            f"add({squares}, {scratch}, out={squares})",
            f"sqrt({squares}, out={scratch})",
            f"add({scratch}, {self.epsilon!r}, out={scratch})",
            f"divide({gradients}, {scratch}, out={scratch})",
            f"multiply({scratch}, rate, out={scratch})",
            f"subtract({weights}, {scratch}, out={weights})",
        ]


@dataclass(frozen=True)
class RmsProp(Optimizer):
    """s = alpha s + g g; b = momentum b + g / (sqrt(s) + epsilon); w = w - rate b.

    s is a sum, as Adam's; centered, it is less (1 - alpha) a a, a the sum of the gradients.

    Source: Tieleman and Hinton 2012, lecture 6e; Graves 2013, equations 38 to 45, in the form of
    torch.optim.RMSprop
    """

    alpha: float
    epsilon: float
    momentum: float
    centered: bool

    @property
    def slots(self) -> tuple[str, ...]:
        means = ("gradient_sum",) if self.centered else ()
        return ("square_sum", *means, *(("momentum",) if self.momentum else ()))

    def factors(self) -> list[str]:
        return [f"rate = learning_rate * {(1 - self.alpha) ** -0.5!r}"]

    def emit(self, weights: str, gradients: str, slots: Sequence[str], scratch: str) -> list[str]:
        squares, *others = slots
        step = scratch
        lines = [
            *self.decayed(gradients, weights, scratch),
            f"multiply({gradients}, {gradients}, out={scratch})",
            f"multiply({squares}, {self.alpha!r}, out={squares})",
            f"add({squares}, {scratch}, out={squares})",
        ]
        if self.centered:
            lines += self._centered(gradients, squares, others.pop(0), scratch)
        else:
            lines.append(f"sqrt({squares}, out={scratch})")
        lines += [
            f"add({scratch}, {self.epsilon * (1 - self.alpha) ** -0.5!r}, out={scratch})",
            f"divide({gradients}, {scratch}, out={scratch})",
        ]
        if self.momentum:
            (step,) = others
            lines.append(f"multiply({step}, {self.momentum!r}, out={step})")
            lines.append(f"add({step}, {scratch}, out={step})")
        return [
            *lines,
            f"multiply({step}, rate, out={scratch})",
            f"subtract({weights}, {scratch}, out={weights})",
        ]

    def _centered(self, gradients: str, squares: str, sums: str, scratch: str) -> list[str]:
        """The root of the gradients' variance; rounding does not take that below zero."""
        return [
            f"multiply({sums}, {self.alpha!r}, out={sums})",
            f"add({sums}, {gradients}, out={sums})",
            f"multiply({sums}, {sums}, out={scratch})",
            f"multiply({scratch}, {1 - self.alpha!r}, out={scratch})",
            f"subtract({squares}, {scratch}, out={scratch})",
            f"maximum({scratch}, 0, out={scratch})",
            f"sqrt({scratch}, out={scratch})",
        ]


#: The optimizer of each algorithm; its fields have the names of the algorithm's.
_OPTIMIZERS: Mapping[type[Any], type[Optimizer]] = {
    SgdAttr: Sgd,
    AdamAttr: Adam,
    LambAttr: Lamb,
    AdagradAttr: Adagrad,
    RmsPropAttr: RmsProp,
}


def optimizer_of(operation: UpdatingOp) -> Optimizer | None:
    """The optimizer that an update operator stands for."""
    algorithm: Any = operation.properties["algorithm"]
    kind = _OPTIMIZERS.get(type(algorithm))
    if kind is None:
        return None
    names = [field.name for field in fields(kind)]
    options: dict[str, Any] = {name: _plain(getattr(algorithm, name)) for name in names}
    return kind(**options)


def _plain(attribute: Any) -> Schedule | StepNumber | float | bool:
    match attribute:
        case StepNumberAttr():
            return StepNumber(attribute.index.data)
        case ScheduleAttr():
            return schedule_of(attribute)
        case builtin.IntegerAttr():
            return bool(attribute.value.data)
        case _:
            return float(attribute.value.data)


def schedule_of(attribute: ScheduleAttr) -> Schedule:
    """The schedule that an attribute describes."""
    plain = {"scheduler": attribute.kind.data, **attribute.numbers}
    schedule: Schedule = msgspec.convert(plain, Schedule)
    return schedule
