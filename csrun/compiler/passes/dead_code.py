"""Rules that erase what nothing reads or what computes nothing."""

import math

from xdsl.ir import Operation
from xdsl.rewriter import InsertPoint, Rewriter

from csrun.cirh.ops.loss import NllLossForwardOp
from csrun.cirh.ops.model import FullOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.types import shape_of, type_of
from csrun.compiler.passes.rewrite_rules import (
    PURE,
    Rule,
    Rules,
    replace_by_operator,
    replace_by_values,
)


def erase_dead(op: Operation) -> bool:
    """Erase an operator whose results nothing uses."""
    if any(result.first_use for result in op.results):
        return False
    Rewriter.erase_op(op)
    return True


def without_elements(op: Operation) -> bool:
    """Operator whose results have no elements -> constants; kernels need at least one element."""
    types = [type_of(result) for result in op.results]
    if isinstance(op, FullOp) or any(math.prod(shape_of(each)) for each in types):
        return False
    constants = [FullOp.declare(each, value=0.0) for each in types]
    for constant in constants:
        constant.location = op.location
        Rewriter.insert_op(constant, InsertPoint.before(op))
    return replace_by_values(op, [constant.results[0] for constant in constants])


def sum_without_elements(op: Operation) -> bool:
    """Sum over an operand without elements -> 0."""
    if math.prod(shape_of(type_of(op.operands[0]))):
        return False
    return replace_by_operator(op, FullOp.declare(type_of(op.results[0]), value=0.0))


DEAD_CODE: Rules = (
    Rule("dead-code", PURE, erase_dead),
    Rule("sum-without-elements", (SumOp, NllLossForwardOp), sum_without_elements),
    Rule("without-elements", PURE, without_elements),
)
