"""Matrix products."""

from typing import Any

from xdsl.ir import SSAValue

from csrun.cirh.ops.arithmetic import AddOp, MulOp
from csrun.cirh.ops.grouped_products import GroupedMmOp, GroupedOuterOp
from csrun.cirh.ops.products import AddmmOp, MatmulOp, MmOp
from csrun.cirh.ops.shape import PermuteOp
from csrun.pytorch.operators.base import Emission, Emitter, dtype, rank, shape


def mm(e: Emission, a: SSAValue, b: SSAValue) -> SSAValue:
    return e.emit(MmOp, a, b)


def bmm(e: Emission, a: SSAValue, b: SSAValue) -> SSAValue:
    return e.emit(MatmulOp, a, b)


def addmm(
    e: Emission, bias: SSAValue, a: SSAValue, b: SSAValue, beta: float = 1, alpha: float = 1
) -> SSAValue:
    if beta == alpha == 1 and rank(bias) == 1 and shape(bias) == shape(b)[1:]:
        return e.emit(AddmmOp, bias, a, b)
    return _added(e, bias, e.emit(MmOp, a, b), beta, alpha)


def baddbmm(
    e: Emission, bias: SSAValue, a: SSAValue, b: SSAValue, beta: float = 1, alpha: float = 1
) -> SSAValue:
    return _added(e, bias, e.emit(MatmulOp, a, b), beta, alpha)


def _added(e: Emission, bias: SSAValue, product: SSAValue, beta: float, alpha: float) -> SSAValue:
    if alpha != 1:
        product = e.emit(MulOp, product, e.full(alpha, dtype(product)))
    if beta == 0:
        return product
    if beta != 1:
        bias = e.emit(MulOp, bias, e.full(beta, dtype(bias)))
    return e.emit(AddOp, product, bias)


def mv(e: Emission, a: SSAValue, x: SSAValue) -> SSAValue:
    return e.view(e.emit(MmOp, a, e.view(x, (*shape(x), 1))), shape(a)[:1])


def dot(e: Emission, a: SSAValue, b: SSAValue) -> SSAValue:
    (n,) = shape(a)
    return e.view(e.emit(MmOp, e.view(a, (1, n)), e.view(b, (n, 1))), ())


def grouped_mm(
    e: Emission,
    a: SSAValue,
    b: SSAValue,
    ends: SSAValue | None = None,
    bias: SSAValue | None = None,
    out_dtype: Any = None,
) -> SSAValue:
    """Emit grouped products; a group is rows or columns of an operand with two axes."""
    if ends is None:
        return e.emit(MatmulOp, a, b)
    if rank(a) == rank(b) == 2:
        return e.emit(GroupedOuterOp, a, b, ends)
    if rank(a) == 2:
        return e.emit(GroupedMmOp, a, b, ends)
    transposed = e.emit(PermuteOp, b, dims=(1, 0)), e.emit(PermuteOp, a, dims=(0, 2, 1))
    return e.emit(PermuteOp, e.emit(GroupedMmOp, *transposed, ends), dims=(1, 0))


EMITTERS: dict[str, Emitter] = {
    "aten.mm.default": mm,
    "aten.bmm.default": bmm,
    "aten.addmm.default": addmm,
    "aten.baddbmm.default": baddbmm,
    "aten.mv.default": mv,
    "aten.dot.default": dot,
    "aten._grouped_mm.default": grouped_mm,
}
