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
    check_decay,
    check_share,
    decay,
    double,
    flag,
    patterns,
    require,
    schedule,
)
from csrun.cirh.algorithms.schedule import Rate, StepNumberAttr


@irdl_attr_definition
class SgdAttr(Algorithm):
    """Stochastic gradient descent, as torch.optim.SGD computes it.

    g = grad + weight_decay w; v = momentum v + g; w = w - learning_rate u, where u is v, or
    g + momentum v with nesterov.

    Source: Sutskever et al. 2013, sections 2 and 3
    """

    name = "cirh.sgd_algorithm"
    learning_rate: Rate
    momentum: Double
    nesterov: builtin.BoolAttr
    weight_decay: Decay
    exclude: Patterns

    @classmethod
    def of(
        cls,
        learning_rate: float | Rate,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float | StepNumberAttr = 0.0,
        exclude: Sequence[str] = (),
    ) -> Self:
        return cls(
            schedule(learning_rate),
            double(momentum),
            flag(nesterov),
            decay(weight_decay),
            patterns(exclude),
        )

    def verify(self) -> None:
        """Raises: VerifyException for a number out of range."""
        momentum = self.momentum.value.data
        check_share("momentum", self.momentum)
        require(
            momentum > 0 or not self.nesterov.value.data, "nesterov needs a momentum > 0", momentum
        )
        check_decay(self.weight_decay, self.exclude)
