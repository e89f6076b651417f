"""Base of the learning algorithms: learning rate, and weight decay with exclusions."""

import re
from collections.abc import Sequence
from typing import Self

from xdsl.dialects import builtin
from xdsl.ir import ParametrizedAttribute
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.algorithms.schedule import Rate, ScheduleAttr, StepNumberAttr

Double = builtin.FloatAttr[builtin.Float64Type]
Decay = Double | StepNumberAttr
Share = Double | StepNumberAttr
Betas = tuple[float | StepNumberAttr, float]
Patterns = builtin.ArrayAttr[builtin.StringAttr]


class Algorithm(ParametrizedAttribute):
    """A learning algorithm.

    All have the fields `learning_rate`, `weight_decay`, `exclude` and `maximize`. Parameters whose
    name matches a pattern of `exclude` anywhere do not decay. With `maximize` the gradient is
    negated first.
    """

    def for_parameter(self, name: str) -> Self:
        """Return the algorithm of one parameter, with its exclusions applied."""
        names = [field for field, _ in self.get_irdl_definition().parameters]
        fields = dict(zip(names, self.parameters, strict=True))
        exclude = fields["exclude"]
        assert isinstance(exclude, builtin.ArrayAttr), "declared so by all of them"
        if not exclude.data:
            return self
        if any(re.search(pattern.data, name) for pattern in exclude.data):
            fields["weight_decay"] = double(0.0)
        return type(self).new([*(fields | {"exclude": patterns(())}).values()])


def double(number: float) -> Double:
    """A float64 number."""
    return builtin.FloatAttr(number, builtin.f64)


def flag(is_so: bool) -> builtin.BoolAttr:
    """Return a boolean attribute."""
    return builtin.BoolAttr.from_bool(is_so)


def schedule(rate: float | Rate) -> Rate:
    """Return a learning rate; a number is constant."""
    return ScheduleAttr.constant(rate) if isinstance(rate, int | float) else rate


def number(value: float | StepNumberAttr) -> Double | StepNumberAttr:
    """Return a constant as an attribute; a number passed with each step is one already."""
    return value if isinstance(value, StepNumberAttr) else double(value)


def patterns(names: Sequence[str]) -> Patterns:
    """Return regular expressions of parameter names."""
    return builtin.ArrayAttr([builtin.StringAttr(pattern) for pattern in names])


def check_decay(decay: Decay, exclude: Patterns) -> None:
    """Raises: VerifyException for a decay out of range or an invalid pattern"""
    if not isinstance(decay, StepNumberAttr):
        require(decay.value.data >= 0, "weight_decay must be >= 0", decay.value.data)
    for pattern in exclude.data:
        try:
            re.compile(pattern.data)
        except re.error as error:
            raise VerifyException(
                f"exclude patterns must be regular expressions, got {pattern.data!r}: {error}"
            ) from error


def check_share(name: str, share: Share) -> None:
    """Raises: VerifyException for a decay factor of a running mean out of range"""
    if isinstance(share, StepNumberAttr):
        return
    require(0 <= share.value.data < 1, f"{name} must be in [0, 1)", share.value.data)


def check_moments(beta1: Share, beta2: Double, epsilon: Double) -> None:
    """Raises: VerifyException for constants of two moments out of range"""
    for beta in (beta1, beta2):
        check_share("betas", beta)
    check_epsilon(epsilon)


def check_epsilon(epsilon: Double) -> None:
    """Raises: VerifyException for an epsilon that does not keep a divisor from zero"""
    require(epsilon.value.data > 0, "epsilon must be > 0", epsilon.value.data)


def require(holds: bool, rule: str, found: float) -> None:
    """Raises: VerifyException naming the rule."""
    if not holds:
        raise VerifyException(f"{rule}, got {found}")
