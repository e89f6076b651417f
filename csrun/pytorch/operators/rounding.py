"""Rounding, quotients and remainders."""

from typing import Any

from xdsl.ir import SSAValue

from csrun.cirh.ops import rounding as ops
from csrun.cirh.ops.arithmetic import DivOp, MulOp, SubOp
from csrun.cirh.ops.base import CirhOp
from csrun.pytorch.operators.base import Emission, Emitter, dtype, floats
from csrun.pytorch.operators.elementwise import Operand, as_type, binary


def rounding(kind: type[CirhOp]) -> Emitter:
    """Return the emitter of a rounding, which leaves integers alone."""

    def emit(e: Emission, x: SSAValue) -> SSAValue:
        return e.emit(kind, x) if floats(x) else x

    return emit


def round_to(e: Emission, x: SSAValue, decimals: int) -> SSAValue:
    """Round to decimals after the point, or before it where negative.

    Source: PyTorch, aten/src/ATen/native/cpu/UnaryOpsKernel.cpp, round_decimals_kernel
    """
    if not floats(x):
        return x
    scale = e.full(10.0 ** abs(decimals), dtype(x))
    first, last = (MulOp, DivOp) if decimals > 0 else (DivOp, MulOp)
    return e.emit(last, e.emit(ops.RoundOp, e.emit(first, x, scale)), scale)


def fraction(e: Emission, x: SSAValue) -> SSAValue:
    return e.emit(SubOp, x, e.emit(ops.TruncOp, x))


def quotient(
    e: Emission, a: Operand, b: Operand, rounding_mode: str | None = None, **unused: Any
) -> SSAValue:
    """a / b, its floor, or truncated."""
    if rounding_mode is None:
        return binary(DivOp)(e, a, b)  # type: ignore[return-value]
    if rounding_mode == "floor":
        return binary(ops.FloorDivideOp)(e, a, b)  # type: ignore[return-value]
    left, right = as_type(e, a, e.dtype), as_type(e, b, e.dtype)
    if floats(left):
        found = e.emit(ops.TruncOp, e.emit(DivOp, left, right))
    else:  # an exact division truncates as it floors
        exact = e.emit(SubOp, left, e.emit(ops.FmodOp, left, right))
        found = e.emit(ops.FloorDivideOp, exact, right)
    return e.expand(found, e.sizes)


def floor_quotient(e: Emission, a: Operand, b: Operand) -> SSAValue:
    return quotient(e, a, b, "floor")


EMITTERS: dict[str, Emitter] = {
    "aten.floor.default": rounding(ops.FloorOp),
    "aten.ceil.default": rounding(ops.CeilOp),
    "aten.trunc.default": rounding(ops.TruncOp),
    "aten.round.default": rounding(ops.RoundOp),
    "aten.round.decimals": lambda e, x, decimals: round_to(e, x, decimals),
    "aten.frac.default": fraction,
    "aten.div.Tensor_mode": quotient,
    "aten.div.Scalar_mode": quotient,
    "aten.floor_divide.default": floor_quotient,
    "aten.floor_divide.Scalar": floor_quotient,
    "aten.remainder.Tensor": binary(ops.RemainderOp),
    "aten.remainder.Scalar": binary(ops.RemainderOp),
    "aten.remainder.Scalar_Tensor": binary(ops.RemainderOp),
    "aten.fmod.Tensor": binary(ops.FmodOp),
    "aten.fmod.Scalar": binary(ops.FmodOp),
}
