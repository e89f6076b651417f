"""Sums over rows that a mask of the batch has selected, without the rows of padding."""

from xdsl.ir import SSAValue

from csrun.cirh.ops.arithmetic import DivOp
from csrun.cirh.ops.comparison import WhereOp
from csrun.pytorch.operators.base import Emission, dtype, rank, shape
from csrun.pytorch.record.rows.operands import Masked


def mask_rows(e: Emission, x: SSAValue, valid: SSAValue, masked: Masked) -> SSAValue:
    """Emit x with a value in the rows of padding.

    Shapes: x [..., rows, ...], valid [rows] -> x
    """
    sizes = [1] * rank(x)
    sizes[masked.axis] = shape(valid)[0]
    along = e.expand(e.view(valid, tuple(sizes)), shape(x))
    return e.emit(WhereOp, along, x, e.full(masked.value, dtype(x)))


def divide_by_count(e: Emission, total: SSAValue, count: SSAValue) -> SSAValue:
    """Emit the mean of the rows. Shapes: total any, count scalar -> total"""
    return e.emit(DivOp, total, e.cast(count, dtype(total)))
