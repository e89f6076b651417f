"""Stochastic gradient descent."""

from dataclasses import dataclass

from csrun.compiler.lair.formula import Values
from csrun.compiler.optimizers.base import Optimizer, cycled_of, text_of, velocity_slot
from csrun.executable.learning_rate import StepNumber


@dataclass(frozen=True)
class Sgd(Optimizer):
    """v = momentum v + (1 - dampening) g, initially g; w = w - learning_rate v.

    Without momentum v is g. With the rate inside, v = momentum v + learning_rate g, and w = w - v.

    Source: Sutskever et al. 2013, section 2, in the form of torch.optim.SGD
    """

    momentum: float | StepNumber
    nesterov: bool
    dampening: float
    rate_inside: bool

    @property
    def slots(self) -> tuple[str, ...]:
        return (velocity_slot(self.rate_inside),) if self.momentum else ()

    @property
    def cycled(self) -> StepNumber | None:
        return cycled_of(self.momentum)

    def factors(self) -> list[str]:
        lines = super().factors()
        if self.momentum and self.dampening:
            lines.append(f"taken = {1 - self.dampening!r} if {self.index} else 1.0")
        return lines

    def update(self, old: Values) -> Values:
        g = self.decayed(old["gradients"], old["weights"])
        if not self.momentum:
            return {"weights": old["weights"] - g * "rate"}
        momentum, slot = text_of(self.momentum), velocity_slot(self.rate_inside)
        if self.rate_inside:
            g = g * "rate"
        v = old[slot] * momentum + (g * "taken" if self.dampening else g)
        u = v * momentum + g if self.nesterov else v
        return {slot: v, "weights": old["weights"] - (u if self.rate_inside else u * "rate")}
