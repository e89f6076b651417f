"""Shares of values that are the same in all parts of a batch.

A loss with a regularization term is a sum over samples plus a value of the weights. Each part of a
batch computes that value, and takes its share of it: the losses of all parts add up to that of the
batch, and so do the gradients. The next value of a state is written by the first part only: the sum
of shares could differ from it by rounding, and the state would drift.
"""

from collections.abc import Sequence

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue
from xdsl.rewriter import InsertPoint

from csrun.cirh import Builder
from csrun.cirh.batch_axes import FIXED, BatchRelation, Dependence, Dependences, dependence_of
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.learning import AssignOp, MinimizeOp, UpdatingOp
from csrun.cirh.ops.model import FullOp, LossOp
from csrun.cirh.ops.padding import FirstPartOp, FirstSampleOp, ShareOp
from csrun.cirh.types import dtype_of, is_float, tensor_type, type_of


def insert_shares(module: ModuleOp, parts: int) -> Dependences:
    """Give each part a share of the values that are added to sums over samples.

    Returns the dependences of all values.
    """
    found: Dependences = {}
    for op in list(module.ops):
        of = [found[operand] for operand in op.operands]
        for number in _shared(op, of):
            share = _share_of(op, number, parts, found)
            of[number] = found[share] = Dependence(BatchRelation.PART)
            op.operands[number] = share
        found.update(zip(op.results, dependence_of(op, of), strict=True))
    return found


def is_zero(value: SSAValue) -> bool:
    """Return whether a value is known to be zero."""
    owner = value.owner
    return isinstance(owner, FullOp) and owner.value.value.data == 0


def _shared(op: Operation, of: Sequence[Dependence]) -> list[int]:
    """Operands that a part has a share of: the result is then a sum over samples."""
    same = [
        number
        for number, operand in enumerate(op.operands)
        if of[number].over is BatchRelation.SAME
        and is_float(type_of(operand))
        and not is_zero(operand)
    ]
    if isinstance(op, LossOp | MinimizeOp | UpdatingOp):  # whose last operand is added up
        return [number for number in same if number == len(of) - 1]
    if not same or not any(one.over is BatchRelation.MIXED for one in dependence_of(op, of)):
        return []
    shared = [
        Dependence(BatchRelation.PART) if number in same else one for number, one in enumerate(of)
    ]
    return same if all(one.over is BatchRelation.PART for one in dependence_of(op, shared)) else []


def _share_of(op: Operation, number: int, parts: int, found: Dependences) -> SSAValue:
    assert isinstance(op, CirhOp), "a module holds operators of CIRH only"
    scope = op.scope.data if op.scope else ""
    builder = Builder(InsertPoint.before(op), scope, lambda: op.location)
    value = op.operands[number]
    if not isinstance(op, AssignOp):
        return builder.emit(ShareOp, value, parts=parts)
    first_sample = builder.leaf(FirstSampleOp, tensor_type((), dtype_of(type_of(value))))
    found[first_sample] = FIXED
    return builder.emit(FirstPartOp, value, first_sample)
