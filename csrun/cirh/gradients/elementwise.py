"""Gradients of elementwise operators."""

from xdsl.ir import SSAValue

from csrun.cirh.gradients.broadcast import reduced_to
from csrun.cirh.gradients.table import Backward, Gradients, Rules
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
from csrun.cirh.types import type_of


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


RULES: Rules = {
    AddOp: add,
    SubOp: sub,
    MulOp: mul,
    DivOp: div,
    NegOp: neg,
    ExpOp: exp,
    LogOp: log,
    SqrtOp: sqrt,
}
