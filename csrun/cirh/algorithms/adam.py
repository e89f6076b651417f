"""Algorithms of two moments: Adam, AdamW and Lamb."""

from collections.abc import Sequence
from typing import Self

from xdsl.dialects import builtin
from xdsl.irdl import irdl_attr_definition

from csrun.cirh.algorithms.base import (
    Algorithm,
    Betas,
    Decay,
    Double,
    Patterns,
    Share,
    check_decay,
    check_moments,
    double,
    flag,
    number,
    patterns,
    schedule,
)
from csrun.cirh.algorithms.schedule import Rate, StepNumberAttr


@irdl_attr_definition
class AdamAttr(Algorithm):
    """Adam, as torch.optim.Adam computes it; decoupled, as torch.optim.AdamW does.

    m = beta1 m + (1 - beta1) g; v = beta2 v + (1 - beta2) g g; with `bias_correction` both moments
    are divided by 1 - beta^t; w = w - learning_rate m / (sqrt(v) + epsilon). With `epsilon_hat`,
    TensorFlow's form, epsilon is added to the root of v before the division, and the step's rate
    includes both divisors. With `amsgrad` the root is of the maximum of v so far. With
    `rounded_betas`, Keras's form, the divisors are of betas that are rounded to float32.

    Source: Kingma and Ba 2015, algorithm 1; epsilon_hat: the end of section 2; Loshchilov and
    Hutter 2019, algorithm 2; amsgrad: Reddi et al. 2018, algorithm 2
    """

    name = "cirh.adam_algorithm"
    learning_rate: Rate
    beta1: Share
    beta2: Double
    epsilon: Double
    decoupled: builtin.BoolAttr
    epsilon_hat: builtin.BoolAttr
    bias_correction: builtin.BoolAttr
    weight_decay: Decay
    exclude: Patterns
    amsgrad: builtin.BoolAttr
    maximize: builtin.BoolAttr
    rounded_betas: builtin.BoolAttr

    @classmethod
    def of(
        cls,
        learning_rate: float | Rate,
        betas: Betas = (0.9, 0.999),
        epsilon: float = 1e-8,
        decoupled: bool = False,
        weight_decay: float | StepNumberAttr = 0.0,
        exclude: Sequence[str] = (),
        epsilon_hat: bool = False,
        bias_correction: bool = True,
        amsgrad: bool = False,
        maximize: bool = False,
        rounded_betas: bool = False,
    ) -> Self:
        return cls(
            schedule(learning_rate),
            number(betas[0]),
            double(betas[1]),
            double(epsilon),
            flag(decoupled),
            flag(epsilon_hat),
            flag(bias_correction),
            number(weight_decay),
            patterns(exclude),
            flag(amsgrad),
            flag(maximize),
            flag(rounded_betas),
        )

    def verify(self) -> None:
        """Raises: VerifyException for a number out of range."""
        _check(self)


@irdl_attr_definition
class LambAttr(Algorithm):
    """Lamb: Adam's direction plus weight decay, scaled to the norm of the parameter.

    u = m / (sqrt(v) + epsilon) + weight_decay w, m and v as in Adam; w = w - learning_rate (|w| /
    |u|) u, with norms over the whole parameter; the ratio is one if a norm is zero.

    Source: You et al. 2020, algorithm 2
    """

    name = "cirh.lamb_algorithm"
    learning_rate: Rate
    beta1: Double
    beta2: Double
    epsilon: Double
    bias_correction: builtin.BoolAttr
    weight_decay: Decay
    exclude: Patterns
    maximize: builtin.BoolAttr

    @classmethod
    def of(
        cls,
        learning_rate: float | Rate,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-6,
        bias_correction: bool = True,
        weight_decay: float | StepNumberAttr = 0.0,
        exclude: Sequence[str] = (),
        maximize: bool = False,
    ) -> Self:
        return cls(
            schedule(learning_rate),
            double(betas[0]),
            double(betas[1]),
            double(epsilon),
            flag(bias_correction),
            number(weight_decay),
            patterns(exclude),
            flag(maximize),
        )

    def verify(self) -> None:
        """Raises: VerifyException for a number out of range."""
        _check(self)


def _check(algorithm: AdamAttr | LambAttr) -> None:
    """Raises: VerifyException for a number out of range."""
    check_moments(algorithm.beta1, algorithm.beta2, algorithm.epsilon)
    check_decay(algorithm.weight_decay, algorithm.exclude)
