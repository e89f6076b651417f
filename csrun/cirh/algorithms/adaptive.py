"""Algorithms that divide by a root of squared gradients: Adagrad, RMSProp and Adadelta."""

from collections.abc import Sequence
from typing import Self

from xdsl.dialects import builtin
from xdsl.irdl import irdl_attr_definition

from csrun.cirh.algorithms.base import (
    Algorithm,
    Decay,
    Double,
    Patterns,
    Share,
    check_decay,
    check_epsilon,
    check_share,
    double,
    flag,
    number,
    patterns,
    require,
    schedule,
)
from csrun.cirh.algorithms.schedule import Rate, StepNumberAttr


@irdl_attr_definition
class AdagradAttr(Algorithm):
    """Adagrad, as torch.optim.Adagrad computes it.

    g = grad + weight_decay w; s = s + g g, initially `initial_accumulator`; w = w - learning_rate /
    (1 + t lr_decay) g / (sqrt(s) + epsilon), t steps after the first; with `epsilon_inside` g /
    sqrt(s + epsilon), as in Keras.

    Source: Duchi et al. 2011, section 1.1, the diagonal form
    """

    name = "cirh.adagrad_algorithm"
    learning_rate: Rate
    lr_decay: Double
    initial_accumulator: Double
    epsilon: Double
    weight_decay: Decay
    exclude: Patterns
    maximize: builtin.BoolAttr
    epsilon_inside: builtin.BoolAttr

    @classmethod
    def of(
        cls,
        learning_rate: float | Rate,
        lr_decay: float = 0.0,
        initial_accumulator: float = 0.0,
        epsilon: float = 1e-10,
        weight_decay: float | StepNumberAttr = 0.0,
        exclude: Sequence[str] = (),
        maximize: bool = False,
        epsilon_inside: bool = False,
    ) -> Self:
        return cls(
            schedule(learning_rate),
            double(lr_decay),
            double(initial_accumulator),
            double(epsilon),
            number(weight_decay),
            patterns(exclude),
            flag(maximize),
            flag(epsilon_inside),
        )

    def verify(self) -> None:
        """Raises: VerifyException for a number out of range."""
        decay, first = self.lr_decay.value.data, self.initial_accumulator.value.data
        require(decay >= 0, "lr_decay must be >= 0", decay)
        require(first >= 0, "initial_accumulator must be >= 0", first)
        check_epsilon(self.epsilon)
        check_decay(self.weight_decay, self.exclude)


@irdl_attr_definition
class RmsPropAttr(Algorithm):
    """RMSProp, as torch.optim.RMSprop computes it.

    g = grad + weight_decay w; s = alpha s + (1 - alpha) g g; a = alpha a + (1 - alpha) g; u = g /
    (sqrt(s) + epsilon), or with `centered` g / (sqrt(s - a a) + epsilon), with the difference
    clamped at zero; b = momentum b + u; w = w - learning_rate b. With `epsilon_inside` epsilon is
    added inside the root, as in Keras; with `rate_inside` u instead of b is multiplied by the
    learning rate. s is initially `initial_accumulator`.

    Source: Tieleman and Hinton 2012, lecture 6e; centered: Graves 2013, equations 38 to 45
    """

    name = "cirh.rmsprop_algorithm"
    learning_rate: Rate
    alpha: Double
    epsilon: Double
    momentum: Share
    centered: builtin.BoolAttr
    weight_decay: Decay
    exclude: Patterns
    maximize: builtin.BoolAttr
    epsilon_inside: builtin.BoolAttr
    initial_accumulator: Double
    rate_inside: builtin.BoolAttr

    @classmethod
    def of(
        cls,
        learning_rate: float | Rate,
        alpha: float = 0.99,
        epsilon: float = 1e-8,
        momentum: float | StepNumberAttr = 0.0,
        centered: bool = False,
        weight_decay: float | StepNumberAttr = 0.0,
        exclude: Sequence[str] = (),
        maximize: bool = False,
        epsilon_inside: bool = False,
        initial_accumulator: float = 0.0,
        rate_inside: bool = False,
    ) -> Self:
        return cls(
            schedule(learning_rate),
            double(alpha),
            double(epsilon),
            number(momentum),
            flag(centered),
            number(weight_decay),
            patterns(exclude),
            flag(maximize),
            flag(epsilon_inside),
            double(initial_accumulator),
            flag(rate_inside),
        )

    def verify(self) -> None:
        """Raises: VerifyException for a number out of range."""
        check_share("alpha", self.alpha)
        check_share("momentum", self.momentum)
        check_epsilon(self.epsilon)
        check_decay(self.weight_decay, self.exclude)


@irdl_attr_definition
class AdadeltaAttr(Algorithm):
    """Adadelta, as torch.optim.Adadelta computes it.

    g = grad + weight_decay w; s = rho s + (1 - rho) g g;
    u = sqrt(d + epsilon) / sqrt(s + epsilon) g; d = rho d + (1 - rho) u u;
    w = w - learning_rate u.

    Source: Zeiler 2012, algorithm 1
    """

    name = "cirh.adadelta_algorithm"
    learning_rate: Rate
    rho: Double
    epsilon: Double
    weight_decay: Decay
    exclude: Patterns
    maximize: builtin.BoolAttr

    @classmethod
    def of(
        cls,
        learning_rate: float | Rate,
        rho: float = 0.9,
        epsilon: float = 1e-6,
        weight_decay: float | StepNumberAttr = 0.0,
        exclude: Sequence[str] = (),
        maximize: bool = False,
    ) -> Self:
        return cls(
            schedule(learning_rate),
            double(rho),
            double(epsilon),
            number(weight_decay),
            patterns(exclude),
            flag(maximize),
        )

    def verify(self) -> None:
        """Raises: VerifyException for a number out of range."""
        check_share("rho", self.rho)
        check_epsilon(self.epsilon)
        check_decay(self.weight_decay, self.exclude)
