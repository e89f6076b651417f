"""Optimizers as the program's update functions see them: flat arrays, a few calls in place."""

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation

from csrun.cirh.ops.learning import SgdOp
from csrun.executable.schedule import Constant, Schedule


@dataclass(frozen=True)
class Sgd:
    """v = momentum v + g; w = w - learning_rate v. Without momentum v is g.

    Source: Sutskever et al. 2013, section 2, in the form of torch.optim.SGD
    """

    learning_rate: Schedule
    momentum: float

    @property
    def slots(self) -> tuple[str, ...]:
        """Names of the optimizer's state tensors, one of each a parameter."""
        return ("momentum",) if self.momentum else ()

    def emit(self, weights: str, gradients: str, slots: Sequence[str]) -> list[str]:
        """The update of flat arrays; the gradients are spent, and serve as scratch."""
        lines, direction = [], gradients
        if self.momentum:
            (direction,) = slots
            lines.append(f"multiply({direction}, {self.momentum!r}, out={direction})")
            lines.append(f"add({direction}, {gradients}, out={direction})")
        lines.append(f"multiply({direction}, learning_rate, out={gradients})")
        lines.append(f"subtract({weights}, {gradients}, out={weights})")
        return lines


Optimizer = Sgd


def optimizer_of(operation: Operation) -> Optimizer | None:
    """The optimizer that an update operator stands for."""
    if isinstance(operation, SgdOp):
        rate = Constant(operation.learning_rate.value.data)
        return Sgd(rate, operation.momentum.value.data)
    return None
