"""Stochastic gradient descent."""

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
class SgdAttr(Algorithm):
    """Stochastic gradient descent, as torch.optim.SGD computes it.

    g = grad + weight_decay w; v = momentum v + (1 - dampening) g, initially g; w = w -
    learning_rate u, where u is v, or g + momentum v with nesterov. With `rate_inside` g is
    multiplied by the step's learning rate instead of u, as in Keras.

    Source: Sutskever et al. 2013, sections 2 and 3
    """

    name = "cirh.sgd_algorithm"
    learning_rate: Rate
    momentum: Share
    nesterov: builtin.BoolAttr
    weight_decay: Decay
    exclude: Patterns
    dampening: Double
    maximize: builtin.BoolAttr
    rate_inside: builtin.BoolAttr

    @classmethod
    def of(
        cls,
        learning_rate: float | Rate,
        momentum: float | StepNumberAttr = 0.0,
        nesterov: bool = False,
        weight_decay: float | StepNumberAttr = 0.0,
        exclude: Sequence[str] = (),
        dampening: float = 0.0,
        maximize: bool = False,
        rate_inside: bool = False,
    ) -> Self:
        return cls(
            schedule(learning_rate),
            number(momentum),
            flag(nesterov),
            number(weight_decay),
            patterns(exclude),
            double(dampening),
            flag(maximize),
            flag(rate_inside),
        )

    def verify(self) -> None:
        """Raises: VerifyException for a number out of range."""
        check_share("momentum", self.momentum)
        if self.nesterov.value.data:
            self._check_nesterov()
        check_decay(self.weight_decay, self.exclude)

    def _check_nesterov(self) -> None:
        dampening = self.dampening.value.data
        require(dampening == 0, "nesterov needs a dampening of 0", dampening)
        if not isinstance(self.momentum, StepNumberAttr):
            momentum = self.momentum.value.data
            require(momentum > 0, "nesterov needs a momentum > 0", momentum)
