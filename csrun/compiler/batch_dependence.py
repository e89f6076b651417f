"""How each value of a model depends on the batch: what its value is over several minibatches."""

from collections.abc import Sequence
from enum import Enum, auto

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops import arithmetic
from csrun.cirh.ops.base import integer, ints
from csrun.cirh.ops.loss import NllLossBackwardOp, NllLossForwardOp
from csrun.cirh.ops.model import FullOp, InputOp, ParameterOp, RowsOp
from csrun.cirh.ops.random import DropoutMaskOp
from csrun.cirh.ops.shape import PermuteOp, ReshapingOp, TransposeOp
from csrun.cirh.types import shape_of, type_of


class BatchDependence(Enum):
    """A value over the batch."""

    SAMPLES = auto()  # its first axis is the batch
    SAME = auto()  # it is the same for all samples
    PART = auto()  # a sum over samples
    MIXED = auto()  # none of these: of the batch as a whole


SAMPLES, SAME, PART, MIXED = BatchDependence
Dependences = dict[SSAValue, BatchDependence]


def dependence_of_values(operations: Sequence[Operation]) -> Dependences:
    """The dependence of every value, from the operators in program order."""
    found: Dependences = {}
    for op in operations:
        for result in op.results:
            found[result] = _dependence_of(op, [found[operand] for operand in op.operands])
    return found


def _dependence_of(op: Operation, of: list[BatchDependence]) -> BatchDependence:
    match op:
        case InputOp() | DropoutMaskOp():
            return SAMPLES
        case ParameterOp() | FullOp() | RowsOp():
            return SAME
        case _ if all(one is SAME for one in of):
            return SAME
        case arithmetic.NegOp() | arithmetic.SumOp() | ReshapingOp() if of[0] is PART:
            return PART
        case arithmetic.AddOp() | arithmetic.SubOp() if of == [PART, PART]:
            return PART
        case arithmetic.MulOp() if sorted(of, key=lambda one: one.value) == [SAME, PART]:
            return PART
        case arithmetic.DivOp() if of == [PART, SAME]:
            return PART
        case NllLossForwardOp() if of == [SAMPLES, SAMPLES]:
            return PART
        case arithmetic.SumOp() if of[0] is SAMPLES and 0 in ints(op.properties, "dims"):
            return PART
        case arithmetic.MmOp():
            return SAMPLES if of == [SAMPLES, SAME] else MIXED
        case arithmetic.AddmmOp():
            return SAMPLES if of[1:] == [SAMPLES, SAME] and _row(op.bias, of[0]) else MIXED
        case TransposeOp() | NllLossBackwardOp():
            return MIXED
        case _:
            return SAMPLES if _is_row_by_row(op, of) else MIXED


def _row(bias: SSAValue, of: BatchDependence) -> bool:
    """Whether a bias is the same for all samples, or one of each."""
    return of is SAME or (of is SAMPLES and len(shape_of(type_of(bias))) > 1)


def _is_row_by_row(op: Operation, of: list[BatchDependence]) -> bool:
    """Whether each sample of the result comes from the same sample of the operands."""
    if any(one not in (SAMPLES, SAME) for one in of):
        return False
    out = shape_of(type_of(op.results[0]))
    shapes = [
        shape_of(type_of(operand))
        for operand, one in zip(op.operands, of, strict=True)
        if one is SAMPLES
    ]
    if "dim" in op.properties and integer(op.properties, "dim") == 0:
        return False
    if isinstance(op, PermuteOp) and ints(op.properties, "dims")[0] != 0:
        return False
    if isinstance(op, arithmetic.BinaryOp) and any(len(shape) != len(out) for shape in shapes):
        return False
    return all(shape[:1] == out[:1] for shape in shapes)
