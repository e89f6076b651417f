"""Gradients of arithmetic: elementwise operators, matrix products, reductions, changes of shape."""

from collections.abc import Sequence

from xdsl.ir import SSAValue

from csrun.cirh.gradients.table import Backward, Gradients, Rules, reduced_to
from csrun.cirh.ops.base import ints
from csrun.cirh.ops.elementwise import (
    AddOp,
    DivOp,
    ExpOp,
    LogOp,
    MulOp,
    NegOp,
    SqrtOp,
    SubOp,
)
from csrun.cirh.ops.matrix import AddmmOp, MmOp
from csrun.cirh.ops.reduction import SumOp
from csrun.cirh.ops.shape import ExpandOp, PermuteOp, TransposeOp, ViewOp
from csrun.cirh.types import shape_of, type_of


def add(back: Backward) -> Gradients:
    """(g, g)."""
    return [_fit(back, i, back.grad) if back.wanted[i] else None for i in (0, 1)]


def sub(back: Backward) -> Gradients:
    """(g, -g)."""
    left = _fit(back, 0, back.grad) if back.wanted[0] else None
    right = _fit(back, 1, back.builder.emit(NegOp, back.grad)) if back.wanted[1] else None
    return [left, right]


def mul(back: Backward) -> Gradients:
    """(g b, g a)."""
    a, b = back.operands
    left = _fit(back, 0, back.builder.emit(MulOp, back.grad, b)) if back.wanted[0] else None
    right = _fit(back, 1, back.builder.emit(MulOp, back.grad, a)) if back.wanted[1] else None
    return [left, right]


def div(back: Backward) -> Gradients:
    """(g / b, -g (a / b) / b)."""
    emit, b = back.builder.emit, back.operands[1]
    left = _fit(back, 0, emit(DivOp, back.grad, b)) if back.wanted[0] else None
    if not back.wanted[1]:
        return [left, None]
    slope = emit(NegOp, emit(DivOp, back.out, b))
    return [left, _fit(back, 1, emit(MulOp, back.grad, slope))]


def neg(back: Backward) -> Gradients:
    """-g."""
    return [back.builder.emit(NegOp, back.grad)]


def exp(back: Backward) -> Gradients:
    """g e^x, from the saved result."""
    return [back.builder.emit(MulOp, back.grad, back.out)]


def log(back: Backward) -> Gradients:
    """g / x."""
    return [back.builder.emit(DivOp, back.grad, back.operands[0])]


def sqrt(back: Backward) -> Gradients:
    """g / (2 sqrt(x)), from the saved result."""
    emit = back.builder.emit
    return [emit(DivOp, back.grad, emit(AddOp, back.out, back.out))]


def _fit(back: Backward, index: int, grad: SSAValue) -> SSAValue:
    return reduced_to(grad, type_of(back.operands[index]), back.builder)


ELEMENTWISE_RULES: Rules = {
    AddOp: add,
    SubOp: sub,
    MulOp: mul,
    DivOp: div,
    NegOp: neg,
    ExpOp: exp,
    LogOp: log,
    SqrtOp: sqrt,
}


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


MATRIX_RULES: Rules = {MmOp: mm, AddmmOp: addmm}


def total(back: Backward) -> Gradients:
    """The gradient repeated along the summed axes."""
    full, dims = shape_of(type_of(back.operands[0])), ints(back.op.properties, "dims")
    kept = tuple(1 if d in dims else n for d, n in enumerate(full))
    grad = back.grad
    if shape_of(type_of(grad)) != kept:
        grad = back.builder.emit(ViewOp, grad, shape=kept)
    return [back.builder.emit(ExpandOp, grad, shape=full)]


REDUCTION_RULES: Rules = {SumOp: total}


def view(back: Backward) -> Gradients:
    """The gradient viewed as the operand."""
    shape = shape_of(type_of(back.operands[0]))
    return [back.builder.emit(ViewOp, back.grad, shape=shape)]


def expand(back: Backward) -> Gradients:
    """The gradient summed over the repeated axes."""
    return [reduced_to(back.grad, type_of(back.operands[0]), back.builder)]


def permute(back: Backward) -> Gradients:
    """The gradient permuted back."""
    dims = inverse(ints(back.op.properties, "dims"))
    return [back.builder.emit(PermuteOp, back.grad, dims=dims)]


def transpose(back: Backward) -> Gradients:
    """The gradient transposed."""
    return [back.builder.emit(TransposeOp, back.grad)]


def inverse(dims: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `dims`."""
    return tuple(sorted(range(len(dims)), key=lambda i: dims[i]))


SHAPE_RULES: Rules = {ViewOp: view, ExpandOp: expand, PermuteOp: permute, TransposeOp: transpose}

ARITHMETIC_RULES: Rules = {
    **ELEMENTWISE_RULES,
    **MATRIX_RULES,
    **REDUCTION_RULES,
    **SHAPE_RULES,
}
