"""Gradients of matrix products."""

from xdsl.ir import SSAValue

from csrun.cirh.gradients.table import Backward, Gradients, Rules
from csrun.cirh.ops.matrix import AddmmOp, MmOp
from csrun.cirh.ops.reduction import SumOp
from csrun.cirh.ops.shape import TransposeOp


def mm(back: Backward) -> Gradients:
    """(g b^T, a^T g)."""
    return _factors(back, back.operands[0], back.operands[1], back.wanted)


def addmm(back: Backward) -> Gradients:
    """(sum of g over rows, g b^T, a^T g)."""
    bias = None
    if back.wanted[0]:
        bias = back.builder.emit(SumOp, back.grad, dims=(0,), keepdim=False)
    return [bias, *_factors(back, back.operands[1], back.operands[2], back.wanted[1:])]


def _factors(back: Backward, a: SSAValue, b: SSAValue, wanted: tuple[bool, ...]) -> Gradients:
    emit = back.builder.emit
    left = emit(MmOp, back.grad, emit(TransposeOp, b)) if wanted[0] else None
    right = emit(MmOp, emit(TransposeOp, a), back.grad) if wanted[1] else None
    return [left, right]


RULES: Rules = {MmOp: mm, AddmmOp: addmm}
