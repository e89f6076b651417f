"""Arithmetic on constants, done by the compiler."""

import math
import operator
from collections.abc import Callable, Mapping

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.arithmetic import AddOp, DivOp, ExpOp, LogOp, MulOp, NegOp, SqrtOp, SubOp
from csrun.cirh.ops.model import FullOp
from csrun.cirh.ops.shape import ExpandOp, PermuteOp, TransposeOp, ViewOp
from csrun.cirh.types import type_of
from csrun.compiler.passes.rules.base import Rule, Rules, replace_by_operator, replace_by_value

ARITHMETIC: Mapping[type[Operation], Callable[..., float]] = {
    AddOp: operator.add,
    SubOp: operator.sub,
    MulOp: operator.mul,
    DivOp: operator.truediv,
    NegOp: operator.neg,
    ExpOp: math.exp,
    LogOp: math.log,
    SqrtOp: math.sqrt,
}
MOVES = (ViewOp, ExpandOp, PermuteOp, TransposeOp)
#: What, on the right, leaves the left operand as it is.
NEUTRAL: Mapping[type[Operation], float] = {AddOp: 0.0, SubOp: 0.0, MulOp: 1.0, DivOp: 1.0}


def arithmetic(op: Operation) -> bool:
    """An operator on constants -> a constant; left to run where it has no finite value."""
    values = [_constant(operand) for operand in op.operands]
    if None in values:
        return False
    try:
        value = float(ARITHMETIC[type(op)](*values))
    except (ValueError, ArithmeticError):
        return False
    return math.isfinite(value) and _replace_by_constant(op, value)


def moved_constant(op: Operation) -> bool:
    """A constant under another shape -> a constant of that shape."""
    value = _constant(op.operands[0])
    return value is not None and _replace_by_constant(op, value)


def neutral_operand(op: Operation) -> bool:
    """x + 0, x - 0, x * 1, x / 1 -> x, and 0 + x, 1 * x -> x."""
    pairs = [(op.operands[0], op.operands[1])]
    if isinstance(op, AddOp | MulOp):
        pairs.append((op.operands[1], op.operands[0]))
    for kept, other in pairs:
        if _constant(other) == NEUTRAL[type(op)] and kept.type == op.results[0].type:
            return replace_by_value(op, kept)
    return False


def _constant(value: SSAValue) -> float | None:
    return float(value.owner.value.value.data) if isinstance(value.owner, FullOp) else None


def _replace_by_constant(op: Operation, value: float) -> bool:
    return replace_by_operator(op, FullOp.declare(type_of(op.results[0]), value=value))


FOLDING: Rules = (
    Rule("arithmetic", tuple(ARITHMETIC), arithmetic),
    Rule("moved-constant", MOVES, moved_constant),
    Rule("neutral-operand", tuple(NEUTRAL), neutral_operand),
)
