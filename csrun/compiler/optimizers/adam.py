"""Optimizers of two moments: Adam, AdamW and Lamb."""

from dataclasses import dataclass

from csrun.compiler.lair.formula import FormulaValue, Values
from csrun.compiler.optimizers.base import (
    CYCLED,
    Optimizer,
    PerTensor,
    cycled_of,
    text_of,
)
from csrun.executable.learning_rate import StepNumber


@dataclass(frozen=True)
class Moments(Optimizer):
    """m = beta1 m + g; v = beta2 v + g g; a direction m / (sqrt(v) + epsilon).

    The slots are sums, not means: a factor (1 - beta) smaller they are Adam's moments. That saves
    two passes over each array; the factors, and the correction of the moments' bias, go into the
    step's `epsilon` and `rate`. Where beta1 comes with each step the first one is a mean, and has
    another name, so that no run takes the one for the other.

    Source: Kingma and Ba 2015, algorithm 1, with the order of operations of the end of section 2
    """

    beta1: float | StepNumber
    beta2: float
    epsilon: float

    @property
    def slots(self) -> tuple[str, ...]:
        return (self.first_slot, "square_sum")

    @property
    def cycled(self) -> StepNumber | None:
        return cycled_of(self.beta1)

    @property
    def first_slot(self) -> str:
        """The name of the first slot."""
        return "gradient_mean" if self.cycled else "gradient_sum"

    @property
    def first_factor(self) -> str:
        """The text that makes the first slot the first moment, where it is its sum."""
        return "" if isinstance(self.beta1, StepNumber) else f" * {1 - self.beta1!r}"

    @property
    def first_bias(self) -> str:
        """The text of what the first moment is divided by."""
        return f"(1 - {text_of(self.beta1)} ** (step.index + 1))"

    @property
    def taken(self) -> list[str]:
        """A line for what the first moment takes of a gradient, where that comes with each step."""
        return [f"taken = 1 - {CYCLED}"] if self.cycled else []

    def first(self, g: FormulaValue, old: Values) -> FormulaValue:
        """The next value of the first slot."""
        kept = old[self.first_slot] * text_of(self.beta1)
        return kept + (g * "taken" if self.cycled else g)

    def direction(self, g: FormulaValue, old: Values) -> tuple[FormulaValue, Values]:
        """The direction times the step's rate, and the moments."""
        m = self.first(g, old)
        v = old["square_sum"] * self.beta2 + g * g
        return m / (v.root() + "epsilon") * "rate", {self.first_slot: m, "square_sum": v}


@dataclass(frozen=True)
class Corrected(Moments):
    """Moments whose bias may be corrected: each is divided by what it lacks at first."""

    bias_correction: bool

    def correction(self, rate: str, epsilon_hat: bool = False) -> list[str]:
        """Lines for `epsilon`, and for `rate`: that which is given times the moments' factors.

        epsilon_hat: epsilon is added to the root of v before its bias is corrected
        """
        if not self.bias_correction:
            unbias = f"{(1 - self.beta2) ** -0.5!r}"
            return [
                f"epsilon = {self.epsilon!r} * {unbias}",
                f"rate = {rate}{unbias}{self.first_factor}",
                *self.taken,
            ]
        added = f"{(1 - self.beta2) ** -0.5!r}" if epsilon_hat else "unbias"
        return [
            f"unbias = ((1 - {self.beta2!r} ** (step.index + 1)) / {1 - self.beta2!r}) ** 0.5",
            f"epsilon = {self.epsilon!r} * {added}",
            f"rate = {rate}unbias{self.first_factor} / {self.first_bias}",
            *self.taken,
        ]


def decay_factor(optimizer: Optimizer, decoupled: bool) -> list[str]:
    """A line for what a step leaves of the weights, where they decay apart from the gradient."""
    if decoupled and optimizer.weight_decay:
        return [f"kept = 1 - learning_rate * {optimizer.decay}"]
    return []


def decay_apart(
    optimizer: Optimizer, decoupled: bool, old: Values
) -> tuple[FormulaValue, FormulaValue]:
    """The gradients and weights after the decay, which is apart from the gradients or in them."""
    g, w = old["gradients"], old["weights"]
    if not decoupled:
        return optimizer.decayed(g, w), w
    return g, w * "kept" if optimizer.weight_decay else w


@dataclass(frozen=True)
class Adam(Corrected):
    """w = w - rate m / (sqrt(v) + epsilon); with `amsgrad` v is the largest so far.

    Source: Kingma and Ba 2015, algorithm 1; decoupled: Loshchilov and Hutter 2019, algorithm 2;
    amsgrad: Reddi et al. 2018, algorithm 2
    """

    decoupled: bool
    epsilon_hat: bool
    amsgrad: bool

    @property
    def slots(self) -> tuple[str, ...]:
        return (*super().slots, *(("largest_square_sum",) if self.amsgrad else ()))

    def factors(self) -> list[str]:
        return [
            *self.correction("learning_rate * ", self.epsilon_hat),
            *decay_factor(self, self.decoupled),
        ]

    def update(self, old: Values) -> Values:
        g, w = decay_apart(self, self.decoupled, old)
        u, moments = self.direction(g, old)
        return {**moments, "weights": w - u}

    def direction(self, g: FormulaValue, old: Values) -> tuple[FormulaValue, Values]:
        if not self.amsgrad:
            return super().direction(g, old)
        m, v = self.first(g, old), old["square_sum"] * self.beta2 + g * g
        largest = old["largest_square_sum"].at_least(v)
        slots = {self.first_slot: m, "square_sum": v, "largest_square_sum": largest}
        return m / (largest.root() + "epsilon") * "rate", slots


@dataclass(frozen=True)
class Lamb(Corrected, PerTensor):
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
