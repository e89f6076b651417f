"""Functions of each value by itself, and choices between values."""

import math
from typing import Any

from csrun.cirh.ops import arithmetic, comparison, powers
from csrun.cirh.ops.base import CirhOp
from csrun.nn.errors import TraceError, located, user_line
from csrun.nn.tensor import Number, Tensor, promoted, require_floats, require_tensor

__all__ = [
    "abs",
    "clamp",
    "exp",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "pow",
    "reciprocal",
    "rsqrt",
    "sign",
    "sqrt",
    "where",
]


def exp(x: Tensor) -> Tensor:
    """e to the power x."""
    return _of_floats("exp", arithmetic.ExpOp, x)


def log(x: Tensor) -> Tensor:
    """Natural logarithm."""
    return _of_floats("log", arithmetic.LogOp, x)


def log1p(x: Tensor) -> Tensor:
    """log(1 + x), exact for a small x, too."""
    return _of_floats("log1p", powers.Log1pOp, x)


def sqrt(x: Tensor) -> Tensor:
    """Square root."""
    return _of_floats("sqrt", arithmetic.SqrtOp, x)


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return _of_floats("rsqrt", powers.RsqrtOp, x)


def reciprocal(x: Tensor) -> Tensor:
    """1 / x."""
    return _of_floats("reciprocal", powers.ReciprocalOp, x)


def _of_floats(name: str, kind: type[CirhOp], x: Tensor) -> Tensor:
    floats = require_tensor(name, x).as_floats()
    return floats.tracer.emit(kind, floats)


def abs(x: Tensor) -> Tensor:
    """|x|, whose slope at 0 is 0."""
    return _signed("abs", powers.AbsOp, x)


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1 by the sign of x; 0 for NaN."""
    return _signed("sign", powers.SignOp, x)


def _signed(name: str, kind: type[CirhOp], x: Tensor) -> Tensor:
    if require_tensor(name, x).dtype == "bool":
        raise TraceError(f"{user_line()}: {name}: a boolean has no sign")
    return x.tracer.emit(kind, x)


def pow(x: Tensor | Number, exponent: Tensor | Number) -> Tensor:
    """x to the power `exponent`, one of which may be a number; it is x ** exponent.

    Raises: TraceError for integers to a negative power
    """
    if isinstance(x, Tensor):
        return x**exponent
    return x ** require_tensor("pow", exponent)


def maximum(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """The larger of two, NaN where one is; where both are equal each gets half the gradient."""
    return _of_two("maximum", comparison.MaximumOp, x, y)


def minimum(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """The smaller of two, NaN where one is; where both are equal each gets half the gradient."""
    return _of_two("minimum", comparison.MinimumOp, x, y)


def _of_two(name: str, kind: type[CirhOp], x: Any, y: Any) -> Tensor:
    with located(name):
        lhs, rhs = promoted(name, x, y)
        return lhs.tracer.emit(kind, lhs, rhs)


def clamp(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """x cut to min..max, either of which may be left out.

    Raises: TraceError for anything but numbers, or without any of them
    """
    x = require_floats("clamp", x)
    bounds = [bound for bound in (min, max) if bound is not None]
    if not bounds or not all(type(bound) in (int, float) for bound in bounds):
        raise TraceError(
            f"{user_line()}: clamp: min, max or both must be numbers, got {min!r} and {max!r}; "
            "nn.minimum and nn.maximum take tensors"
        )
    low = -math.inf if min is None else float(min)
    high = math.inf if max is None else float(max)
    return x.tracer.emit(comparison.ClampOp, x, min_val=low, max_val=high)


def where(condition: Tensor, x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """x where the condition is true, else y; all three broadcast, and x and y may be numbers.

    Raises: TraceError for a condition that is not of booleans
    """
    if require_tensor("where", condition).dtype != "bool":
        raise TraceError(
            f"{user_line()}: where: the condition must be of booleans, as x > 0 is, "
            f"got {condition.dtype}"
        )
    with located("where"):
        lhs, rhs = promoted("where", x, y, tracer=condition.tracer)
        return condition.tracer.emit(comparison.WhereOp, condition, lhs, rhs)
