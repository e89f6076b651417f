"""Optimizers that divide by a root of squared gradients: Adagrad, RMSProp and Adadelta."""

from dataclasses import dataclass

from csrun.compiler.lair.formula import Values
from csrun.compiler.optimizers.base import Optimizer, cycled_of, text_of, velocity_slot
from csrun.executable.learning_rate import StepNumber


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """s = s + g g; w = w - rate g / (sqrt(s) + epsilon), or g / sqrt(s + epsilon).

    Source: Duchi et al. 2011, section 1.1, in the form of torch.optim.Adagrad
    """

    lr_decay: float
    initial_accumulator: float
    epsilon: float
    epsilon_inside: bool

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square_sum",)

    def first_value(self, slot: str) -> float:
        return self.initial_accumulator

    def factors(self) -> list[str]:
        return [f"rate = learning_rate / (1 + {self.index} * {self.lr_decay!r})"]

    def update(self, old: Values) -> Values:
        g = self.decayed(old["gradients"], old["weights"])
        s = old["square_sum"] + g * g
        u = g / ((s + self.epsilon).root() if self.epsilon_inside else s.root() + self.epsilon)
        return {"square_sum": s, "weights": old["weights"] - u * "rate"}


@dataclass(frozen=True)
class RmsProp(Optimizer):
    """s = alpha s + g g; b = momentum b + g / (sqrt(s) + epsilon); w = w - rate b.

    s is a sum, as in Adam; if centered, (1 - alpha) a a is subtracted, with a the sum of the
    gradients. With epsilon inside, the root is that of s + epsilon. With the rate inside the
    velocity, b is that of `Sgd`.

    Source: Tieleman and Hinton 2012, lecture 6e; Graves 2013, equations 38 to 45, in the form of
    torch.optim.RMSprop
    """

    alpha: float
    epsilon: float
    momentum: float | StepNumber
    centered: bool
    epsilon_inside: bool
    initial_accumulator: float
    rate_inside: bool

    @property
    def slots(self) -> tuple[str, ...]:
        means = ("gradient_sum",) if self.centered else ()
        velocity = (velocity_slot(self.rate_inside),) if self.momentum else ()
        return ("square_sum", *means, *velocity)

    def first_value(self, slot: str) -> float:
        return self.initial_accumulator / (1 - self.alpha) if slot == "square_sum" else 0.0

    @property
    def cycled(self) -> StepNumber | None:
        return cycled_of(self.momentum)

    def factors(self) -> list[str]:
        return [f"rate = learning_rate * {(1 - self.alpha) ** -0.5!r}"]

    def update(self, old: Values) -> Values:
        g = self.decayed(old["gradients"], old["weights"])
        s = old["square_sum"] * self.alpha + g * g
        found, variance = {"square_sum": s}, s
        if self.centered:
            a = old["gradient_sum"] * self.alpha + g
            found["gradient_sum"] = a
            # The sums are 1 / (1 - alpha) times the means; the variance is clamped at zero against
            # rounding.
            variance = (s - a * a * (1 - self.alpha)).at_least(0)
        if self.epsilon_inside:
            u = g / (variance + self.epsilon / (1 - self.alpha)).root()
        else:
            u = g / (variance.root() + self.epsilon * (1 - self.alpha) ** -0.5)
        if self.rate_inside:
            u = u * "rate"
        if self.momentum:
            slot = velocity_slot(self.rate_inside)
            u = found[slot] = old[slot] * text_of(self.momentum) + u
        return {**found, "weights": old["weights"] - (u if self.rate_inside else u * "rate")}


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """u = sqrt(d + epsilon) / sqrt(s + epsilon) g; d = rho d + u u; w = w - rate u.

    s = rho s + g g and d are sums, as in Adam, and epsilon is scaled accordingly; the factor
    cancels in the quotient.

    Source: Zeiler 2012, algorithm 1, in the form of torch.optim.Adadelta
    """

    rho: float
    epsilon: float

    @property
    def slots(self) -> tuple[str, ...]:
        return ("square_sum", "delta_sum")

    def update(self, old: Values) -> Values:
        g = self.decayed(old["gradients"], old["weights"])
        epsilon = self.epsilon / (1 - self.rho)
        s = old["square_sum"] * self.rho + g * g
        u = (old["delta_sum"] + epsilon).root() / (s + epsilon).root() * g
        d = old["delta_sum"] * self.rho + u * u
        return {"square_sum": s, "delta_sum": d, "weights": old["weights"] - u * "rate"}
