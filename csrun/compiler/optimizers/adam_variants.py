"""Variants of Adam: Adamax, NAdam and RAdam."""

from dataclasses import dataclass

from csrun.compiler.lair.formula import Values
from csrun.compiler.optimizers.adam import Moments, apply_decay, decay_factor


@dataclass(frozen=True)
class Adamax(Moments):
    """n = max(beta2 n, |g| + epsilon); w = w - rate m / n.

    Source: Kingma and Ba 2015, algorithm 2, in the form of torch.optim.Adamax
    """

    @property
    def slots(self) -> tuple[str, ...]:
        return (self.first_slot, "infinity_norm")

    def factors(self) -> list[str]:
        return [f"rate = learning_rate{self.first_factor} / {self.first_bias}", *self.taken]

    def update(self, old: Values) -> Values:
        g = self.decayed(old["gradients"], old["weights"])
        m = self.first(g, old)
        norm = (old["infinity_norm"] * self.beta2).at_least(g.magnitude() + self.epsilon)
        w = old["weights"] - m / norm * "rate"
        return {self.first_slot: m, "infinity_norm": norm, "weights": w}


@dataclass(frozen=True)
class NAdam(Moments):
    """w = w - (rate m + gradient_rate g) / (sqrt(v) + epsilon).

    Source: Dozat 2016, algorithm 2, in the form of torch.optim.NAdam
    """

    momentum_decay: float
    decoupled: bool

    def factors(self) -> list[str]:
        options = f"{self.beta1!r}, {self.momentum_decay!r}"
        return [
            f"unbias = ((1 - {self.beta2!r} ** ({self.index} + 1)) / {1 - self.beta2!r}) ** 0.5",
            f"epsilon = {self.epsilon!r} * unbias",
            f"now, ahead = nesterov_factors({options}, {self.index})",
            "gradient_rate = learning_rate * unbias * now",
            f"rate = learning_rate * unbias * ahead{self.first_factor}",
            *decay_factor(self, self.decoupled),
        ]

    def update(self, old: Values) -> Values:
        g, w = apply_decay(self, self.decoupled, old)
        m = self.first(g, old)
        v = old["square_sum"] * self.beta2 + g * g
        u = (m * "rate" + g * "gradient_rate") / (v.root() + "epsilon")
        return {self.first_slot: m, "square_sum": v, "weights": w - u}


@dataclass(frozen=True)
class RAdam(Moments):
    """w = w - rate m / (rectified sqrt(v) + epsilon).

    `rectified` is 1, or 0 in the first steps, in which v has no variance and `epsilon` is 1.

    Source: Liu et al. 2020, algorithm 2, in the form of torch.optim.RAdam
    """

    decoupled: bool

    def factors(self) -> list[str]:
        unbias = f"{(1 - self.beta2) ** -0.5!r}"
        return [
            f"rectified_rate = rectification({self.beta2!r}, {self.index})",
            f"rate = learning_rate{self.first_factor} / {self.first_bias}",
            "rectified, epsilon = 0.0, 1.0",
            "if rectified_rate:",
            f"    rectified, epsilon = 1.0, {self.epsilon!r} * {unbias}",
            f"    rate *= rectified_rate * {unbias}",
            *self.taken,
            *decay_factor(self, self.decoupled),
        ]

    def update(self, old: Values) -> Values:
        g, w = apply_decay(self, self.decoupled, old)
        m = self.first(g, old)
        v = old["square_sum"] * self.beta2 + g * g
        u = m / (v.root() * "rectified" + "epsilon") * "rate"
        return {self.first_slot: m, "square_sum": v, "weights": w - u}
