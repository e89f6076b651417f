"""Optimizers as the program's update functions see them: formulas over flat arrays.

What they make is loops of `lair`: what is on the way is in a tile of scratch, which stays in the
cache, and only what an array takes over is written to memory.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self

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
from csrun.compiler.lair.formula import Value, Values
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
        """Lines that compute a step's `rate`, and more, from `learning_rate` and `weight_decay`."""
        return ["rate = learning_rate"]

    @abstractmethod
    def update(self, old: Values) -> Values:
        """What `weights` and slots take over, from these and `gradients`; `rate` is the step's."""

    def without_decay(self) -> Self:
        """The optimizer in a step whose weight decay is 0."""
        return replace(self, weight_decay=0.0)

    def decayed(self, values: Value, weights: Value) -> Value:
        """values + decay w."""
        return values + weights * self.decay if self.weight_decay else values


class PerTensor(Optimizer):
    """A parameter is updated in two loops: `update`, and when all of it has been seen, `finish`."""

    @abstractmethod
    def whole(self, squares: str) -> list[str]:
        """Lines between the loops; `squares()` gives the sums of the weights' and gradients'."""

    @abstractmethod
    def finish(self, old: Values) -> Values:
        """What is taken over in the second loop, from what the first one left."""


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

    def update(self, old: Values) -> Values:
        g = self.decayed(old["gradients"], old["weights"])
        if not self.momentum:
            return {"weights": old["weights"] - g * "rate"}
        v = old["momentum"] * self.momentum + g
        u = v * self.momentum + g if self.nesterov else v
        return {"momentum": v, "weights": old["weights"] - u * "rate"}


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

    def direction(self, g: Value, old: Values) -> tuple[Value, Values]:
        """The direction times the step's rate, and the moments."""
        m = old["gradient_sum"] * self.beta1 + g
        v = old["square_sum"] * self.beta2 + g * g
        return m / (v.root() + "epsilon") * "rate", {"gradient_sum": m, "square_sum": v}


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

    def update(self, old: Values) -> Values:
        g, w = old["gradients"], old["weights"]
        if self.decoupled:
            w = w * "kept" if self.weight_decay else w
        else:
            g = self.decayed(g, w)
        u, moments = self.direction(g, old)
        return {**moments, "weights": w - u}


@dataclass(frozen=True)
class Lamb(Moments, PerTensor):
    """u = rate m / (sqrt(v) + epsilon) + weight_decay w; w = w - learning_rate (|w| / |u|) u.

    Source: You et al. 2020, algorithm 2
    """

    def factors(self) -> list[str]:
        return self.correction("")

    def update(self, old: Values) -> Values:
        u, moments = self.direction(old["gradients"], old)
        return {**moments, "gradients": self.decayed(u, old["weights"])}

    def whole(self, squares: str) -> list[str]:
        return [f"rate = learning_rate * trust_ratio(*{squares}())"]

    def finish(self, old: Values) -> Values:
        return {"weights": old["weights"] - old["gradients"] * "rate"}


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

    def update(self, old: Values) -> Values:
        g = self.decayed(old["gradients"], old["weights"])
        s = old["square_sum"] + g * g
        u = g / (s.root() + self.epsilon)
        return {"square_sum": s, "weights": old["weights"] - u * "rate"}


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

    def update(self, old: Values) -> Values:
        g = self.decayed(old["gradients"], old["weights"])
        s = old["square_sum"] * self.alpha + g * g
        found, variance = {"square_sum": s}, s
        if self.centered:
            a = old["gradient_sum"] * self.alpha + g
            found["gradient_sum"] = a
            # The sums are 1 / (1 - alpha) of the means; rounding takes no variance below zero.
            variance = (s - a * a * (1 - self.alpha)).at_least(0)
        u = g / (variance.root() + self.epsilon * (1 - self.alpha) ** -0.5)
        if self.momentum:
            u = old["momentum"] * self.momentum + u
            found["momentum"] = u
        return {**found, "weights": old["weights"] - u * "rate"}


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
