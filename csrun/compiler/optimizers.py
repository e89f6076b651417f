"""Optimizers as the program's update functions see them: flat arrays, a few calls in place.

The gradients are spent: they serve as scratch, and end as what was taken from the weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
from xdsl.ir import Operation

from csrun.cirh.algorithms import ScheduleAttr
from csrun.cirh.ops.learning import AdamOp, SgdOp
from csrun.executable.learning_rate import Schedule

LEAST_DIVISOR = 1e-12  # of a gradient: a large one over a smaller number is infinite in float32


@dataclass(frozen=True)
class Sgd:
    """v = momentum v + g; w = w - learning_rate v. Without momentum v is g.

    Source: Sutskever et al. 2013, section 2, in the form of torch.optim.SGD
    """

    learning_rate: Schedule
    momentum: float
    nesterov: bool
    weight_decay: float

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the optimizer's state tensors, one of each a parameter."""
        return ("momentum",) if self.momentum else ()

    def factors(self) -> list[str]:
        """Lines that compute a step's factors from `learning_rate`."""
        return []

    def emit(self, weights: str, gradients: str, slots: Sequence[str]) -> list[str]:
        """The update of flat arrays."""
        lines, direction = _decayed(weights, gradients, self.weight_decay), gradients
        rate = "learning_rate"
        if self.momentum:
            (direction,) = slots
            lines.append(f"multiply({direction}, {self.momentum!r}, out={direction})")
            lines.append(f"add({direction}, {gradients}, out={direction})")
        if self.nesterov and self.momentum < LEAST_DIVISOR:
            look_ahead = f"multiply({direction}, {self.momentum!r})"
            lines.append(f"add({gradients}, {look_ahead}, out={gradients})")
            direction = gradients
        elif self.nesterov:  # g + momentum v, as momentum (g / momentum + v)
            lines.append(f"multiply({gradients}, {1 / self.momentum!r}, out={gradients})")
            lines.append(f"add({gradients}, {direction}, out={gradients})")
            direction, rate = gradients, f"learning_rate * {self.momentum!r}"
        lines.append(f"multiply({direction}, {rate}, out={gradients})")
        lines.append(f"subtract({weights}, {gradients}, out={weights})")
        return lines


@dataclass(frozen=True)
class Adam:
    """m = beta1 m + g; v = beta2 v + g g; w = w - rate m / (sqrt(v) + epsilon).

    The slots are sums, not means: a factor (1 - beta) smaller they are Adam's moments. That saves
    two passes over each array; the factors, and the correction of the moments' bias, go into the
    step's `rate` and `epsilon`.

    Source: Kingma and Ba 2015, algorithm 1, with the order of operations of the end of section 2;
    decoupled: Loshchilov and Hutter 2019, algorithm 2
    """

    learning_rate: Schedule
    beta1: float
    beta2: float
    epsilon: float
    decoupled: bool
    weight_decay: float

    slots = ("gradient_sum", "square_sum")

    def factors(self) -> list[str]:
        """Lines that compute a step's factors from `learning_rate`."""
        lines = [
            f"unbias = ((1 - {self.beta2!r} ** (step.index + 1)) / {1 - self.beta2!r}) ** 0.5",
            f"epsilon = {self.epsilon!r} * unbias",
            f"rate = learning_rate * unbias * {1 - self.beta1!r} / "
            f"(1 - {self.beta1!r} ** (step.index + 1))",
        ]
        if self.decoupled and self.weight_decay:
            lines.append(f"kept = 1 - learning_rate * {self.weight_decay!r}")
        return lines

    def emit(self, weights: str, gradients: str, slots: Sequence[str]) -> list[str]:
        """The update of flat arrays."""
        sums, squares = slots
        lines = [] if self.decoupled else _decayed(weights, gradients, self.weight_decay)
        if self.decoupled and self.weight_decay:
            lines.append(f"multiply({weights}, kept, out={weights})")
        return [
            *lines,
            f"multiply({sums}, {self.beta1!r}, out={sums})",
            f"add({sums}, {gradients}, out={sums})",
            f"multiply({gradients}, {gradients}, out={gradients})",
            f"multiply({squares}, {self.beta2!r}, out={squares})",
            f"add({squares}, {gradients}, out={squares})",
            f"sqrt({squares}, out={gradients})",
            f"add({gradients}, epsilon, out={gradients})",
            f"divide({sums}, {gradients}, out={gradients})",
            f"multiply({gradients}, rate, out={gradients})",
            f"subtract({weights}, {gradients}, out={weights})",
        ]


Optimizer = Sgd | Adam


def _decayed(weights: str, gradients: str, decay: float) -> list[str]:
    """g + decay w, as decay (g / decay + w): without an array for decay w."""
    if not decay:
        return []
    if decay < LEAST_DIVISOR:
        return [f"add({gradients}, multiply({weights}, {decay!r}), out={gradients})"]
    return [
        f"multiply({gradients}, {1 / decay!r}, out={gradients})",
        f"add({gradients}, {weights}, out={gradients})",
        f"multiply({gradients}, {decay!r}, out={gradients})",
    ]


def optimizer_of(operation: Operation) -> Optimizer | None:
    """The optimizer that an update operator stands for."""
    if isinstance(operation, SgdOp):
        sgd = operation.algorithm
        return Sgd(
            schedule_of(sgd.learning_rate),
            sgd.momentum.value.data,
            bool(sgd.nesterov.value.data),
            sgd.weight_decay.value.data,
        )
    if isinstance(operation, AdamOp):
        adam = operation.algorithm
        return Adam(
            schedule_of(adam.learning_rate),
            adam.beta1.value.data,
            adam.beta2.value.data,
            adam.epsilon.value.data,
            bool(adam.decoupled.value.data),
            adam.weight_decay.value.data,
        )
    return None


def schedule_of(attribute: ScheduleAttr) -> Schedule:
    """The schedule that an attribute describes."""
    plain = {"scheduler": attribute.kind.data, **attribute.numbers}
    schedule: Schedule = msgspec.convert(plain, Schedule)
    return schedule
