"""Elementwise functions, and selections between two tensors."""

import math
from typing import Any

from csrun.cirh.ops import arithmetic, comparison, powers, rounding, trigonometry
from csrun.cirh.ops.base import CirhOp
from csrun.nn.errors import TraceError, located, user_line
from csrun.nn.tensor import Number, Tensor, promote, require_floats, require_tensor

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
    """Exponential function."""
    return _emit_on_floats("exp", arithmetic.ExpOp, x)


def log(x: Tensor) -> Tensor:
    """Natural logarithm."""
    return _emit_on_floats("log", arithmetic.LogOp, x)


def log1p(x: Tensor) -> Tensor:
    """log(1 + x), accurate for small x."""
    return _emit_on_floats("log1p", powers.Log1pOp, x)


def sqrt(x: Tensor) -> Tensor:
    """Square root."""
    return _emit_on_floats("sqrt", arithmetic.SqrtOp, x)


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return _emit_on_floats("rsqrt", powers.RsqrtOp, x)


def reciprocal(x: Tensor) -> Tensor:
    """1 / x."""
    return _emit_on_floats("reciprocal", powers.ReciprocalOp, x)


def sin(x: Tensor) -> Tensor:
    """Sine of x in radians."""
    return _emit_on_floats("sin", trigonometry.SinOp, x)


def cos(x: Tensor) -> Tensor:
    """Cosine of x in radians."""
    return _emit_on_floats("cos", trigonometry.CosOp, x)


def tan(x: Tensor) -> Tensor:
    """Tangent of x in radians."""
    return _emit_on_floats("tan", trigonometry.TanOp, x)


def asin(x: Tensor) -> Tensor:
    """Arc sine, in -pi/2..pi/2."""
    return _emit_on_floats("asin", trigonometry.AsinOp, x)


def acos(x: Tensor) -> Tensor:
    """Arc cosine, in 0..pi."""
    return _emit_on_floats("acos", trigonometry.AcosOp, x)


def atan(x: Tensor) -> Tensor:
    """Arc tangent, in -pi/2..pi/2."""
    return _emit_on_floats("atan", trigonometry.AtanOp, x)


def sinh(x: Tensor) -> Tensor:
    """Hyperbolic sine."""
    return _emit_on_floats("sinh", trigonometry.SinhOp, x)


def cosh(x: Tensor) -> Tensor:
    """Hyperbolic cosine."""
    return _emit_on_floats("cosh", trigonometry.CoshOp, x)


def asinh(x: Tensor) -> Tensor:
    """Inverse hyperbolic sine."""
    return _emit_on_floats("asinh", trigonometry.AsinhOp, x)


def acosh(x: Tensor) -> Tensor:
    """Inverse hyperbolic cosine, >= 0."""
    return _emit_on_floats("acosh", trigonometry.AcoshOp, x)


def atanh(x: Tensor) -> Tensor:
    """Inverse hyperbolic tangent."""
    return _emit_on_floats("atanh", trigonometry.AtanhOp, x)


def expm1(x: Tensor) -> Tensor:
    """exp(x) - 1, accurate for small x."""
    return _emit_on_floats("expm1", trigonometry.Expm1Op, x)


def atan2(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Angle of the point (y, x), in -pi..pi."""
    with located("atan2"):
        lhs, rhs = promote("atan2", x, y, to_floats=True)
        return lhs.tracer.emit(trigonometry.Atan2Op, lhs, rhs)


def floor(x: Tensor) -> Tensor:
    """Largest integer <= x."""
    return _emit_on_floats("floor", rounding.FloorOp, x)


def ceil(x: Tensor) -> Tensor:
    """Smallest integer >= x."""
    return _emit_on_floats("ceil", rounding.CeilOp, x)


def trunc(x: Tensor) -> Tensor:
    """x rounded towards 0."""
    return _emit_on_floats("trunc", rounding.TruncOp, x)


def round(x: Tensor) -> Tensor:
    """x rounded to the nearest integer, halves to even."""
    return _emit_on_floats("round", rounding.RoundOp, x)


def floor_divide(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """floor(x / y), as x // y; its gradient is 0."""
    return _emit_binary("floor_divide", rounding.FloorDivideOp, x, y)


def remainder(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Remainder of x / y with the sign of y, as x % y."""
    return _emit_binary("remainder", rounding.RemainderOp, x, y)


def fmod(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Remainder of x / y with the sign of x."""
    return _emit_binary("fmod", rounding.FmodOp, x, y)


def _emit_on_floats(name: str, kind: type[CirhOp], x: Tensor) -> Tensor:
    floats = require_tensor(name, x).as_floats()
    return floats.tracer.emit(kind, floats)


def abs(x: Tensor) -> Tensor:
    """|x|, with gradient 0 at 0."""
    return _emit_on_numbers("abs", powers.AbsOp, x)


def sign(x: Tensor) -> Tensor:
    """Sign of x: -1, 0 or 1; 0 for NaN."""
    return _emit_on_numbers("sign", powers.SignOp, x)


def _emit_on_numbers(name: str, kind: type[CirhOp], x: Tensor) -> Tensor:
    if require_tensor(name, x).dtype == "bool":
        raise TraceError(f"{user_line()}: {name}: expected numbers, got bool")
    return x.tracer.emit(kind, x)


def pow(x: Tensor | Number, exponent: Tensor | Number) -> Tensor:
    """x ** exponent, for tensors or a tensor and a number.

    Raises: TraceError for integers raised to a negative power
    """
    if isinstance(x, Tensor):
        return x**exponent
    return x ** require_tensor("pow", exponent)


def maximum(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Elementwise maximum, NaN if either is NaN; equal values share the gradient."""
    return _emit_binary("maximum", comparison.MaximumOp, x, y)


def minimum(x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """Elementwise minimum, NaN if either is NaN; equal values share the gradient."""
    return _emit_binary("minimum", comparison.MinimumOp, x, y)


def _emit_binary(name: str, kind: type[CirhOp], x: Any, y: Any) -> Tensor:
    with located(name):
        lhs, rhs = promote(name, x, y)
        return lhs.tracer.emit(kind, lhs, rhs)


def clamp(x: Tensor, min: float | None = None, max: float | None = None) -> Tensor:
    """x clipped to min..max, either of which may be None.

    Raises: TraceError if neither is given, or one is not a number
    """
    x = require_floats("clamp", x)
    bounds = [bound for bound in (min, max) if bound is not None]
    if not bounds or not all(type(bound) in (int, float) for bound in bounds):
        raise TraceError(
            f"{user_line()}: clamp: min, max or both must be numbers, got {min!r} and {max!r}; "
            "use nn.minimum and nn.maximum for tensors"
        )
    low = -math.inf if min is None else float(min)
    high = math.inf if max is None else float(max)
    return x.tracer.emit(comparison.ClampOp, x, min_val=low, max_val=high)


def where(condition: Tensor, x: Tensor | Number, y: Tensor | Number) -> Tensor:
    """x where the condition is True, else y; all three broadcast, x and y may be numbers.

    Raises: TraceError for a condition that is not boolean
    """
    if require_tensor("where", condition).dtype != "bool":
        raise TraceError(
            f"{user_line()}: where: the condition must be boolean, such as x > 0, "
            f"got {condition.dtype}"
        )
    with located("where"):
        lhs, rhs = promote("where", x, y, tracer=condition.tracer)
        return condition.tracer.emit(comparison.WhereOp, condition, lhs, rhs)
