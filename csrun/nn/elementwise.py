"""Functions of each value by itself, and choices between values."""

import math
from typing import Any

from csrun.cirh.ops import arithmetic, comparison, powers, rounding, trigonometry
from csrun.cirh.ops.base import CirhOp
from csrun.nn.errors import TraceError, located, user_line
from csrun.nn.tensor import Number, Tensor, promoted, require_floats, require_tensor

__all__ = [
    "abs",
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "ceil",
    "clamp",
    "cos",
    "cosh",
    "exp",
    "expm1",
    "floor",
    "floor_divide",
    "fmod",
    "log",
    "log1p",
    "maximum",
    "minimum",
    "pow",
    "reciprocal",
    "remainder",
    "round",
    "rsqrt",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "trunc",
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


def sin(x: Tensor) -> Tensor:
    """Sine of x in radians."""
    return _of_floats("sin", trigonometry.SinOp, x)


def cos(x: Tensor) -> Tensor:
    """Cosine of x in radians."""
    return _of_floats("cos", trigonometry.CosOp, x)


def tan(x: Tensor) -> Tensor:
    """Tangent of x in radians."""
    return _of_floats("tan", trigonometry.TanOp, x)


def asin(x: Tensor) -> Tensor:
    """Arc sine, in -pi/2..pi/2."""
    return _of_floats("asin", trigonometry.AsinOp, x)


def acos(x: Tensor) -> Tensor:
    """Arc cosine, in 0..pi."""
    return _of_floats("acos", trigonometry.AcosOp, x)


def atan(x: Tensor) -> Tensor:
    """Arc tangent, in -pi/2..pi/2."""
    return _of_floats("atan", trigonometry.AtanOp, x)


def sinh(x: Tensor) -> Tensor:
    """Hyperbolic sine."""
    return _of_floats("sinh", trigonometry.SinhOp, x)


def cosh(x: Tensor) -> Tensor:
    """Hyperbolic cosine."""
    return _of_floats("cosh", trigonometry.CoshOp, x)


def asinh(x: Tensor) -> Tensor:
    """Inverse hyperbolic sine."""
    return _of_floats("asinh", trigonometry.AsinhOp, x)


def acosh(x: Tensor) -> Tensor:
    """Inverse hyperbolic cosine, not below 0."""
    return _of_floats("acosh", trigonometry.AcoshOp, x)


def atanh(x: Tensor) -> Tensor:
    """Inverse hyperbolic tangent."""
    return _of_floats("atanh", trigonometry.AtanhOp, x)


def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, exact for a small x, too."""
    return _of_floats("expm1", trigonometry.Expm1Op, x)


def atan2(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Angle of the point (y, x), in -pi..pi."""
    with located("atan2"):
        lhs, rhs = promoted("atan2", x, y, to_floats=True)
        return lhs.tracer.emit(trigonometry.Atan2Op, lhs, rhs)


def floor(x: Tensor) -> Tensor:
    """Largest whole number that is not above x."""
    return _of_floats("floor", rounding.FloorOp, x)


def ceil(x: Tensor) -> Tensor:
    """Least whole number that is not below x."""
    return _of_floats("ceil", rounding.CeilOp, x)


def trunc(x: Tensor) -> Tensor:
    """x without its fraction."""
    return _of_floats("trunc", rounding.TruncOp, x)


def round(x: Tensor) -> Tensor:
    """Nearest whole number, halves to the even one."""
    return _of_floats("round", rounding.RoundOp, x)


def floor_divide(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Floor of the quotient x / y, which is x // y; its slope is 0."""
    return _of_two("floor_divide", rounding.FloorDivideOp, x, y)


def remainder(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """x modulo y with the sign of y, which is x % y."""
    return _of_two("remainder", rounding.RemainderOp, x, y)


def fmod(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """x modulo y with the sign of x."""
    return _of_two("fmod", rounding.FmodOp, x, y)


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
