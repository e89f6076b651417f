"""Elementwise arithmetic, comparisons and selection; operands are cast to the result's type."""

from functools import partial
from math import inf, pi
from typing import Any

from xdsl.ir import SSAValue

from csrun.cirh.ops import arithmetic, comparison, powers, trigonometry
from csrun.cirh.ops.base import CirhOp
from csrun.pytorch.operators.base import (
    Emission,
    Emitter,
    dtype,
    floats,
    name_of,
    shape,
    unsupported,
)

Operand = SSAValue | float
_ORDER = ("bool", "int32", "int64", "float32", "float64")


def as_type(e: Emission, x: Operand, to: str) -> SSAValue:
    """Return a value or number as a value of a type."""
    return e.cast(x, to) if isinstance(x, SSAValue) else e.full(x, to)


def binary(kind: type[CirhOp]) -> Emitter:
    """Return the emitter of a binary operator with broadcasting."""

    def emit(e: Emission, a: Operand, b: Operand, **options: Any) -> SSAValue:
        if options.get("alpha", 1) != 1:
            b = e.emit(arithmetic.MulOp, as_type(e, b, e.dtype), e.full(options["alpha"], e.dtype))
        found = e.emit(kind, as_type(e, a, e.dtype), as_type(e, b, e.dtype))
        return e.expand(found, e.sizes)

    return emit


def reversed_subtraction(e: Emission, a: SSAValue, b: Operand, alpha: float = 1) -> SSAValue:
    """b - alpha a."""
    if alpha != 1:
        a = e.emit(arithmetic.MulOp, a, e.full(alpha, dtype(a)))
    return e.emit(arithmetic.SubOp, as_type(e, b, e.dtype), as_type(e, a, e.dtype))


def compare(kind: type[CirhOp]) -> Emitter:
    """Return the emitter of a comparison, in the wider type of its operands."""

    def emit(e: Emission, a: SSAValue, b: Operand) -> SSAValue:
        if isinstance(b, SSAValue):
            wide = max(dtype(a), dtype(b), key=_ORDER.index)
        else:
            wide = dtype(a) if floats(a) or not isinstance(b, float) else e.precision
            wide = "int64" if wide == "bool" else wide
        return e.emit(kind, as_type(e, a, wide), as_type(e, b, wide))

    return emit


def unary(kind: type[CirhOp]) -> Emitter:
    """Return the emitter of a unary operator, in the type of the result."""

    def emit(e: Emission, x: SSAValue) -> SSAValue:
        return e.emit(kind, e.cast(x, e.dtype))

    return emit


def where(e: Emission, condition: SSAValue, a: Operand, b: Operand) -> SSAValue:
    return e.emit(comparison.WhereOp, condition, as_type(e, a, e.dtype), as_type(e, b, e.dtype))


def masked_fill(e: Emission, x: SSAValue, mask: SSAValue, value: Operand) -> SSAValue:
    return where(e, mask, value, x)


def clamp(e: Emission, x: SSAValue, low: Any = None, high: Any = None) -> SSAValue:
    if isinstance(low, SSAValue) or isinstance(high, SSAValue) or not floats(x):
        for kind, bound in ((comparison.MaximumOp, low), (comparison.MinimumOp, high)):
            x = x if bound is None else e.emit(kind, x, as_type(e, bound, e.dtype))
        return x
    low, high = -inf if low is None else float(low), inf if high is None else float(high)
    return e.emit(comparison.ClampOp, x, min_val=low, max_val=high)


def power(e: Emission, x: Operand, exponent: Operand) -> SSAValue:
    """Emit small powers as products and roots, as PyTorch computes them."""
    if not isinstance(x, SSAValue) or isinstance(exponent, SSAValue):
        return e.emit(powers.PowOp, as_type(e, x, e.dtype), as_type(e, exponent, e.dtype))
    x = e.cast(x, e.dtype)
    if exponent in (1, 2, 3):
        out = x
        for _ in range(int(exponent) - 1):
            out = e.emit(arithmetic.MulOp, out, x)
        return out
    if exponent == 0:
        return e.full(1, e.dtype, e.sizes)
    if exponent in (-1, -2) and floats(x):
        out = x if exponent == -1 else e.emit(arithmetic.MulOp, x, x)
        return e.emit(powers.ReciprocalOp, out)
    if exponent in (0.5, -0.5):
        return e.emit(arithmetic.SqrtOp if exponent > 0 else powers.RsqrtOp, x)
    return e.emit(powers.PowOp, x, e.full(exponent, e.dtype))


def to_copy(e: Emission, x: SSAValue, **options: Any) -> SSAValue:
    kind = options.get("dtype")
    return x if kind is None else e.cast(x, name_of(kind))


def copy(e: Emission, x: SSAValue, source: SSAValue, *unused: Any) -> SSAValue:
    """Emit the source in the shape and type of x, which is overwritten."""
    return e.expand(e.cast(source, dtype(x)), shape(x))


def logical_not(e: Emission, x: SSAValue) -> SSAValue:
    """x == 0."""
    if e.dtype != "bool":
        raise unsupported("a logical not must give bool", e.dtype, "compare with 0")
    kind = "int32" if dtype(x) == "bool" else dtype(x)
    return e.emit(comparison.EqOp, e.cast(x, kind), e.full(0, kind))


def logical(kind: type[CirhOp]) -> Emitter:
    """Return the emitter of a logical operator, as a minimum or maximum of truth values."""

    def emit(e: Emission, a: SSAValue, b: SSAValue) -> SSAValue:
        if e.dtype != "bool":
            raise unsupported("a logical and, or, xor must give bool", e.dtype, "compare with 0")
        truths = [e.cast(e.cast(x, "bool"), "int32") for x in (a, b)]
        return e.expand(e.cast(e.emit(kind, *truths), "bool"), e.sizes)

    return emit


def is_nan(e: Emission, x: SSAValue) -> SSAValue:
    """x != x, which only NaN is."""
    return e.emit(comparison.NeOp, x, x) if floats(x) else e.full(0, "bool", shape(x))


def is_infinite(e: Emission, x: SSAValue) -> SSAValue:
    if not floats(x):
        return e.full(0, "bool", shape(x))
    return e.emit(comparison.EqOp, e.emit(powers.AbsOp, x), e.full(inf, dtype(x)))


def is_negative(e: Emission, x: SSAValue) -> SSAValue:
    """True if the sign bit is set, as it is of -0.0."""
    if not floats(x):
        return e.emit(comparison.LtOp, x, e.full(0, dtype(x)))
    angle = e.emit(trigonometry.Atan2Op, e.full(0, dtype(x)), x)  # pi of -0.0, 0 of 0.0
    return e.emit(comparison.GtOp, angle, e.full(1, dtype(x)))


def copy_sign(e: Emission, x: Operand, sign: Operand) -> SSAValue:
    """|x| with the sign of another number."""
    size = e.emit(powers.AbsOp, as_type(e, x, e.dtype))
    below = is_negative(e, as_type(e, sign, e.dtype))
    found = e.emit(comparison.WhereOp, below, e.emit(arithmetic.NegOp, size), size)
    return e.expand(found, e.sizes)


def hypotenuse(e: Emission, a: SSAValue, b: SSAValue) -> SSAValue:
    """sqrt(a a + b b), scaled by the larger one, so that squares do not overflow."""
    a, b = (e.emit(powers.AbsOp, e.cast(x, e.dtype)) for x in (a, b))
    most, least = e.emit(comparison.MaximumOp, a, b), e.emit(comparison.MinimumOp, a, b)
    is_plain = _is_positive_and_finite(e, most)
    one = e.full(1, e.dtype)
    ratio = e.emit(arithmetic.DivOp, least, e.emit(comparison.WhereOp, is_plain, most, one))
    square = e.emit(arithmetic.AddOp, e.emit(arithmetic.MulOp, ratio, ratio), one)
    found = e.emit(arithmetic.MulOp, most, e.emit(arithmetic.SqrtOp, square))
    return e.expand(e.emit(comparison.WhereOp, is_plain, found, most), e.sizes)


def _is_positive_and_finite(e: Emission, x: SSAValue) -> SSAValue:
    above = e.emit(comparison.GtOp, x, e.full(0, dtype(x)))
    below = e.emit(comparison.LtOp, x, e.full(inf, dtype(x)))
    return e.cast(
        e.emit(comparison.MinimumOp, e.cast(above, "int32"), e.cast(below, "int32")), "bool"
    )


def extremum_but_nan(kind: type[CirhOp]) -> Emitter:
    """Return the emitter of a maximum or minimum of which NaN is not, where the other is none."""

    def emit(e: Emission, a: SSAValue, b: SSAValue) -> SSAValue:
        a, b = (e.expand(e.cast(x, e.dtype), e.sizes) for x in (a, b))
        found = e.emit(kind, a, b)
        if not floats(a):
            return found
        found = e.emit(comparison.WhereOp, is_nan(e, b), a, found)
        return e.emit(comparison.WhereOp, is_nan(e, a), b, found)

    return emit


def angle(e: Emission, x: SSAValue) -> SSAValue:
    """pi of negative numbers, 0 of others; NaN stays."""
    x = e.cast(x, e.dtype)
    below = e.emit(comparison.LtOp, x, e.full(0, e.dtype))
    found = e.emit(comparison.WhereOp, below, e.full(pi, e.dtype), e.full(0, e.dtype))
    return e.emit(comparison.WhereOp, is_nan(e, x), x, found)


def of_scalar_and_tensor(kind: type[CirhOp]) -> dict[str, Emitter]:
    """Return the emitters of a comparison's two overloads."""
    name = kind.name.removeprefix("cirh.")
    return {f"aten.{name}.{overload}": compare(kind) for overload in ("Scalar", "Tensor")}


def add_scaled(
    product: bool, e: Emission, x: SSAValue, a: SSAValue, b: SSAValue, value: float = 1
) -> SSAValue:
    """x + value a b, or x + value a / b."""
    x, a, b = (e.cast(operand, e.dtype) for operand in (x, a, b))
    found = e.emit(arithmetic.MulOp if product else arithmetic.DivOp, a, b)
    if value != 1:
        found = e.emit(arithmetic.MulOp, found, e.full(value, dtype(found)))
    return e.emit(arithmetic.AddOp, x, found)


EMITTERS: dict[str, Emitter] = {
    **{
        f"aten.{name}.{overload}": binary(kind)
        for name, kind in (
            ("add", arithmetic.AddOp),
            ("sub", arithmetic.SubOp),
            ("mul", arithmetic.MulOp),
            ("div", arithmetic.DivOp),
        )
        for overload in ("Tensor", "Scalar")
    },
    "aten.maximum.default": binary(comparison.MaximumOp),
    "aten.minimum.default": binary(comparison.MinimumOp),
    "aten.rsub.Scalar": reversed_subtraction,
    "aten.rsub.Tensor": reversed_subtraction,
    **{
        name: emitter
        for kind in (
            comparison.EqOp,
            comparison.NeOp,
            comparison.LtOp,
            comparison.LeOp,
            comparison.GtOp,
            comparison.GeOp,
        )
        for name, emitter in of_scalar_and_tensor(kind).items()
    },
    "aten.neg.default": unary(arithmetic.NegOp),
    "aten.exp.default": unary(arithmetic.ExpOp),
    "aten.log.default": unary(arithmetic.LogOp),
    "aten.sqrt.default": unary(arithmetic.SqrtOp),
    "aten.abs.default": unary(powers.AbsOp),
    "aten.sign.default": unary(powers.SignOp),
    "aten.sgn.default": unary(powers.SignOp),
    "aten.reciprocal.default": unary(powers.ReciprocalOp),
    "aten.rsqrt.default": unary(powers.RsqrtOp),
    "aten.log1p.default": unary(powers.Log1pOp),
    "aten.pow.Tensor_Scalar": power,
    "aten.pow.Tensor_Tensor": power,
    "aten.pow.Scalar": power,
    "aten.where.self": where,
    "aten.masked_fill.Scalar": masked_fill,
    "aten.masked_fill.Tensor": masked_fill,
    "aten.clamp.default": clamp,
    "aten.clamp.Tensor": clamp,
    "aten.clamp_min.default": clamp,
    "aten.clamp_max.default": lambda e, x, high: clamp(e, x, None, high),
    "aten._to_copy.default": to_copy,
    "aten.copy.default": copy,
    "aten.signbit.default": is_negative,
    "aten.copysign.Tensor": copy_sign,
    "aten.copysign.Scalar": copy_sign,
    "aten.hypot.default": hypotenuse,
    "aten.fmax.default": extremum_but_nan(comparison.MaximumOp),
    "aten.fmin.default": extremum_but_nan(comparison.MinimumOp),
    "aten.angle.default": angle,
    "aten.isnan.default": is_nan,
    "aten.isinf.default": is_infinite,
    "aten.logical_not.default": logical_not,
    "aten.logical_and.default": logical(comparison.MinimumOp),
    "aten.logical_or.default": logical(comparison.MaximumOp),
    "aten.logical_xor.default": logical(comparison.NeOp),
    "aten.bitwise_xor.Tensor": logical(comparison.NeOp),
    "aten.bitwise_not.default": logical_not,
    "aten.bitwise_and.Tensor": logical(comparison.MinimumOp),
    "aten.bitwise_or.Tensor": logical(comparison.MaximumOp),
    "aten.addcmul.default": partial(add_scaled, True),
    "aten.addcdiv.default": partial(add_scaled, False),
}
