"""How each value of a model depends on the batch: what its value is over several minibatches."""

from collections.abc import Sequence
from enum import Enum, auto

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.base import integer, ints
from csrun.cirh.ops.elementwise import AddOp, BinaryOp, DivOp, MulOp, NegOp, SubOp
from csrun.cirh.ops.loss import NllLossBackwardOp, NllLossForwardOp
from csrun.cirh.ops.matrix import AddmmOp, MmOp
from csrun.cirh.ops.model import FullOp, InputOp, ParameterOp, RowsOp
from csrun.cirh.ops.random import DropoutMaskOp
from csrun.cirh.ops.reduction import SumOp
from csrun.cirh.ops.shape import PermuteOp, ReshapingOp, TransposeOp
from csrun.cirh.types import shape_of, type_of


class Spread(Enum):
    """A value over the batch."""

    SAMPLES = auto()  # its first axis is the batch
    SAME = auto()  # it is the same for all samples
    PART = auto()  # a sum over samples
    MIXED = auto()  # none of these: of the batch as a whole


SAMPLES, SAME, PART, MIXED = Spread
Spreads = dict[SSAValue, Spread]


def spread_of_values(operations: Sequence[Operation]) -> Spreads:
    """The spread of every value, from the operators in program order."""
    found: Spreads = {}
    for op in operations:
        for result in op.results:
            found[result] = _spread_of(op, [found[operand] for operand in op.operands])
    return found


def _spread_of(op: Operation, of: list[Spread]) -> Spread:
    match op:
        case InputOp() | DropoutMaskOp():
            return SAMPLES
        case ParameterOp() | FullOp() | RowsOp():
            return SAME
        case _ if all(spread is SAME for spread in of):
            return SAME
        case NegOp() | SumOp() | ReshapingOp() if of[0] is PART:
            return PART
        case AddOp() | SubOp() if of == [PART, PART]:
            return PART
        case MulOp() if sorted(of, key=lambda spread: spread.value) == [SAME, PART]:
            return PART
        case DivOp() if of == [PART, SAME]:
            return PART
        case NllLossForwardOp() if of == [SAMPLES, SAMPLES]:
            return PART
        case SumOp() if of[0] is SAMPLES and 0 in ints(op.properties, "dims"):
            return PART
        case MmOp():
            return SAMPLES if of == [SAMPLES, SAME] else MIXED
        case AddmmOp():
            return SAMPLES if of[1:] == [SAMPLES, SAME] and _row(op.bias, of[0]) else MIXED
        case TransposeOp() | NllLossBackwardOp():
            return MIXED
        case _:
            return SAMPLES if _is_row_by_row(op, of) else MIXED


def _row(bias: SSAValue, spread: Spread) -> bool:
    """Whether a bias is the same for all samples, or one of each."""
    return spread is SAME or (spread is SAMPLES and len(shape_of(type_of(bias))) > 1)


def _is_row_by_row(op: Operation, of: list[Spread]) -> bool:
    """Whether each sample of the result comes from the same sample of the operands."""
    if any(spread not in (SAMPLES, SAME) for spread in of):
        return False
    out = shape_of(type_of(op.results[0]))
    shapes = [
        shape_of(type_of(operand))
        for operand, spread in zip(op.operands, of, strict=True)
        if spread is SAMPLES
    ]
    if "dim" in op.properties and integer(op.properties, "dim") == 0:
        return False
    if isinstance(op, PermuteOp) and ints(op.properties, "dims")[0] != 0:
        return False
    if isinstance(op, BinaryOp) and any(len(shape) != len(out) for shape in shapes):
        return False
    return all(shape[:1] == out[:1] for shape in shapes)
