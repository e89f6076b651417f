"""Variants of Adam: Adamax, NAdam and RAdam."""

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
    require,
    schedule,
)
from csrun.cirh.algorithms.schedule import Rate, StepNumberAttr


@irdl_attr_definition
class AdamaxAttr(Algorithm):
    """Adamax, as torch.optim.Adamax computes it.

    m = beta1 m + (1 - beta1) g; n = max(beta2 n, |g| + epsilon);
    w = w - learning_rate / (1 - beta1^t) m / n.

    Source: Kingma and Ba 2015, algorithm 2
    """

    name = "cirh.adamax_algorithm"
    learning_rate: Rate
    beta1: Share
    beta2: Double
    epsilon: Double
    weight_decay: Decay
    exclude: Patterns
    maximize: builtin.BoolAttr

    @classmethod
    def of(
        cls,
        learning_rate: float | Rate,
        betas: Betas = (0.9, 0.999),
        epsilon: float = 1e-8,
        weight_decay: float | StepNumberAttr = 0.0,
        exclude: Sequence[str] = (),
        maximize: bool = False,
    ) -> Self:
        return cls(
            schedule(learning_rate),
            number(betas[0]),
            double(betas[1]),
            double(epsilon),
            number(weight_decay),
            patterns(exclude),
            flag(maximize),
        )

    def verify(self) -> None:
        """Raises: VerifyException for a number out of range."""
        check_moments(self.beta1, self.beta2, self.epsilon)
        check_decay(self.weight_decay, self.exclude)


@irdl_attr_definition
class NAdamAttr(Algorithm):
    """NAdam, as torch.optim.NAdam computes it; decoupled: weight decay as AdamW's.

    mu(t) = beta1 (1 - 0.96^(t momentum_decay) / 2), P(t) the product of mu(1) to mu(t); m and v are
    Adam's; w = w - learning_rate (mu(t + 1) / (1 - P(t + 1)) m + (1 - mu(t)) / (1 - P(t)) g) / d,
    where d = sqrt(v / (1 - beta2^t)) + epsilon.

    Source: Dozat 2016, algorithm 2
    """

    name = "cirh.nadam_algorithm"
    learning_rate: Rate
    beta1: Double
    beta2: Double
    epsilon: Double
    momentum_decay: Double
    decoupled: builtin.BoolAttr
    weight_decay: Decay
    exclude: Patterns
    maximize: builtin.BoolAttr

    @classmethod
    def of(
        cls,
        learning_rate: float | Rate,
        betas: tuple[float, float] = (0.9, 0.999),
        epsilon: float = 1e-8,
        momentum_decay: float = 0.004,
        decoupled: bool = False,
        weight_decay: float | StepNumberAttr = 0.0,
        exclude: Sequence[str] = (),
        maximize: bool = False,
    ) -> Self:
        return cls(
            schedule(learning_rate),
            double(betas[0]),
            double(betas[1]),
            double(epsilon),
            double(momentum_decay),
            flag(decoupled),
            number(weight_decay),
            patterns(exclude),
            flag(maximize),
        )

    def verify(self) -> None:
        """Raises: VerifyException for a number out of range."""
        momentum_decay = self.momentum_decay.value.data
        require(momentum_decay >= 0, "momentum_decay must be >= 0", momentum_decay)
        check_moments(self.beta1, self.beta2, self.epsilon)
        check_decay(self.weight_decay, self.exclude)


@irdl_attr_definition
class RAdamAttr(Algorithm):
    """RAdam, as torch.optim.RAdam computes it; decoupled: weight decay as in AdamW.

    Adam with a rate that is rectified by the variance of the second moment; in the first steps,
    without such a variance, w = w - learning_rate m / (1 - beta1^t).

    Source: Liu et al. 2020, algorithm 2
    """

    name = "cirh.radam_algorithm"
    learning_rate: Rate
    beta1: Share
    beta2: Double
    epsilon: Double
    decoupled: builtin.BoolAttr
    weight_decay: Decay
    exclude: Patterns
    maximize: builtin.BoolAttr

    @classmethod
    def of(
        cls,
        learning_rate: float | Rate,
        betas: Betas = (0.9, 0.999),
        epsilon: float = 1e-8,
        decoupled: bool = False,
        weight_decay: float | StepNumberAttr = 0.0,
        exclude: Sequence[str] = (),
        maximize: bool = False,
    ) -> Self:
        return cls(
            schedule(learning_rate),
            number(betas[0]),
            double(betas[1]),
            double(epsilon),
            flag(decoupled),
            number(weight_decay),
            patterns(exclude),
            flag(maximize),
        )

    def verify(self) -> None:
        """Raises: VerifyException for a number out of range."""
        check_moments(self.beta1, self.beta2, self.epsilon)
        check_decay(self.weight_decay, self.exclude)
