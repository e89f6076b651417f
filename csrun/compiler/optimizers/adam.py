"""Optimizers of two moments: Adam, AdamW and Lamb."""

from dataclasses import dataclass
from typing import Any

import numpy as np

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

    The slots are sums instead of means: times (1 - beta) they are Adam's moments. That saves two
    passes over each array; the factors and the bias correction are part of the step's `epsilon` and
    `rate`. If beta1 changes with each step the first slot is a mean, and has another name, so that
    a run cannot mistake one for the other.

    Source: Kingma and Ba 2015, algorithm 1, with the order of operations at the end of section 2
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
        """Name of the first slot."""
        return "gradient_mean" if self.cycled else "gradient_sum"

    @property
    def first_factor(self) -> str:
        """Text of the factor that converts the first slot to the first moment, if it is a sum."""
        return "" if isinstance(self.beta1, StepNumber) else f" * {1 - self.beta1!r}"

    @property
    def first_bias(self) -> str:
        """Text of the divisor of the first moment."""
        return f"(1 - {text_of(self.corrected_beta(self.beta1))} ** ({self.index} + 1))"

    def corrected_beta(self, beta: Any) -> Any:
        """Return a beta as the bias correction has it."""
        return beta

    @property
    def taken(self) -> list[str]:
        """Line for the factor of the gradient in the first moment, if it changes with each step."""
        return [f"taken = 1 - {CYCLED}"] if self.cycled else []

    def first(self, g: FormulaValue, old: Values) -> FormulaValue:
        """Return the next value of the first slot."""
        kept = old[self.first_slot] * text_of(self.beta1)
        return kept + (g * "taken" if self.cycled else g)

    def direction(self, g: FormulaValue, old: Values) -> tuple[FormulaValue, Values]:
        """Return the direction times the step's rate, and the moments."""
        m = self.first(g, old)
        v = old["square_sum"] * self.beta2 + g * g
        return m / (v.root() + "epsilon") * "rate", {self.first_slot: m, "square_sum": v}


@dataclass(frozen=True)
class Corrected(Moments):
    """Moments with optional bias correction."""

    bias_correction: bool

    def correction(self, rate: str, epsilon_hat: bool = False) -> list[str]:
        """Return lines for `epsilon`, and for `rate`: the given rate times the moments' factors.

        epsilon_hat: epsilon is added to the root of v before the bias correction.
        """
        if not self.bias_correction:
            unbias = f"{(1 - self.beta2) ** -0.5!r}"
            return [
                f"epsilon = {self.epsilon!r} * {unbias}",
                f"rate = {rate}{unbias}{self.first_factor}",
                *self.taken,
            ]
        added = f"{(1 - self.beta2) ** -0.5!r}" if epsilon_hat else "unbias"
        power = f"{self.corrected_beta(self.beta2)!r} ** ({self.index} + 1)"
        return [
            f"unbias = ((1 - {power}) / {1 - self.beta2!r}) ** 0.5",
            f"epsilon = {self.epsilon!r} * {added}",
            f"rate = {rate}unbias{self.first_factor} / {self.first_bias}",
            *self.taken,
        ]


def decay_factor(optimizer: Optimizer, decoupled: bool) -> list[str]:
    """Return a line for the factor of the weights, if weight decay is decoupled from the
    gradient.
    """
    if decoupled and optimizer.weight_decay:
        return [f"kept = 1 - learning_rate * {optimizer.decay}"]
    return []


def apply_decay(
    optimizer: Optimizer, decoupled: bool, old: Values
) -> tuple[FormulaValue, FormulaValue]:
    """Return gradients and weights after the decay, decoupled or as part of the gradients."""
    g, w = old["gradients"], old["weights"]
    if not decoupled:
        return optimizer.decayed(g, w), w
    return g, w * "kept" if optimizer.weight_decay else w


@dataclass(frozen=True)
class Adam(Corrected):
    """w = w - rate m / (sqrt(v) + epsilon); with `amsgrad` v is the maximum so far.

    Source: Kingma and Ba 2015, algorithm 1; decoupled: Loshchilov and Hutter 2019, algorithm 2;
    amsgrad: Reddi et al. 2018, algorithm 2
    """

    decoupled: bool
    epsilon_hat: bool
    amsgrad: bool
    rounded_betas: bool

    @property
    def slots(self) -> tuple[str, ...]:
        return (*super().slots, *(("largest_square_sum",) if self.amsgrad else ()))

    def corrected_beta(self, beta: Any) -> Any:
        is_number = isinstance(beta, float)
        return float(np.float32(beta)) if self.rounded_betas and is_number else beta

    def factors(self) -> list[str]:
        return [
            *self.correction("learning_rate * ", self.epsilon_hat),
            *decay_factor(self, self.decoupled),
        ]

    def update(self, old: Values) -> Values:
        g, w = apply_decay(self, self.decoupled, old)
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
