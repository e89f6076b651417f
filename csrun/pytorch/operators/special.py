"""Trigonometric, hyperbolic and error functions, logarithms and powers of other bases."""

from math import log, sqrt

from xdsl.ir import SSAValue

from csrun.cirh.ops import trigonometry as ops
from csrun.cirh.ops.arithmetic import AddOp, DivOp, ExpOp, LogOp, MulOp, NegOp, SubOp
from csrun.cirh.ops.comparison import EqOp, MaximumOp, WhereOp
from csrun.cirh.ops.gelu import GeluCdfOp
from csrun.cirh.ops.powers import AbsOp, Log1pOp
from csrun.pytorch.operators.base import Emission, Emitter, dtype
from csrun.pytorch.operators.elementwise import binary, unary


def normal_cdf(e: Emission, x: SSAValue) -> SSAValue:
    return e.emit(GeluCdfOp, e.cast(x, e.dtype), approximate="none")


def erf(e: Emission, x: SSAValue) -> SSAValue:
    """2 P(N(0, 1) < sqrt(2) x) - 1."""
    cdf = normal_cdf(e, _times(e, e.cast(x, e.dtype), sqrt(2)))
    return e.emit(SubOp, _times(e, cdf, 2), e.full(1, e.dtype))


def erfc(e: Emission, x: SSAValue) -> SSAValue:
    return _times(e, normal_cdf(e, _times(e, e.cast(x, e.dtype), -sqrt(2))), 2)


def logarithm(base: float) -> Emitter:
    """Return the emitter of log(x) / log(base)."""

    def emit(e: Emission, x: SSAValue) -> SSAValue:
        return _times(e, e.emit(LogOp, e.cast(x, e.dtype)), 1 / log(base))

    return emit


def exp2(e: Emission, x: SSAValue) -> SSAValue:
    return e.emit(ExpOp, _times(e, e.cast(x, e.dtype), log(2)))


def logaddexp(e: Emission, a: SSAValue, b: SSAValue) -> SSAValue:
    """max(a, b) + log(1 + exp(-|a - b|)); equal infinities stay."""
    a, b = (e.cast(x, e.dtype) for x in (a, b))
    distance = e.emit(NegOp, e.emit(AbsOp, e.emit(SubOp, a, b)))
    found = e.emit(AddOp, e.emit(MaximumOp, a, b), e.emit(Log1pOp, e.emit(ExpOp, distance)))
    is_infinite = e.emit(EqOp, e.emit(AbsOp, a), e.full(float("inf"), e.dtype))
    is_same = e.emit(EqOp, a, b)
    found = e.emit(WhereOp, is_same, e.emit(WhereOp, is_infinite, a, found), found)
    return e.expand(found, e.sizes)


def logaddexp2(e: Emission, a: SSAValue, b: SSAValue) -> SSAValue:
    natural = logaddexp(e, _times(e, a, log(2)), _times(e, b, log(2)))
    return e.emit(DivOp, natural, e.full(log(2), e.dtype))


def _times(e: Emission, x: SSAValue, factor: float) -> SSAValue:
    return e.emit(MulOp, x, e.full(factor, dtype(x)))


_UNARY = {
    "sin": ops.SinOp,
    "cos": ops.CosOp,
    "tan": ops.TanOp,
    "asin": ops.AsinOp,
    "acos": ops.AcosOp,
    "atan": ops.AtanOp,
    "sinh": ops.SinhOp,
    "cosh": ops.CoshOp,
    "asinh": ops.AsinhOp,
    "acosh": ops.AcoshOp,
    "atanh": ops.AtanhOp,
    "expm1": ops.Expm1Op,
}

EMITTERS: dict[str, Emitter] = {
    **{f"aten.{name}.default": unary(kind) for name, kind in _UNARY.items()},
    "aten.atan2.default": binary(ops.Atan2Op),
    "aten.special_ndtr.default": normal_cdf,
    "aten.erf.default": erf,
    "aten.erfc.default": erfc,
    "aten.log2.default": logarithm(2),
    "aten.log10.default": logarithm(10),
    "aten.exp2.default": exp2,
    "aten.logaddexp.default": logaddexp,
    "aten.logaddexp2.default": logaddexp2,
}
