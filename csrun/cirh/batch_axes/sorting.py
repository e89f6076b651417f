"""Orders along an axis, and products of groups of rows, which an order has made."""

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import LOST, OF_THE_BATCH, Dependence, Rules
from csrun.cirh.ops.base import integer
from csrun.cirh.ops.grouped_products import GroupedMmOp, GroupedOuterOp
from csrun.cirh.ops.sorting import ArgsortOp


def ordered(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    if one.axis is None:
        return OF_THE_BATCH
    if one.axis == integer(op.properties, "dim"):
        return LOST
    return replace(one, padding=None)


def grouped(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Rows of a group are of several samples."""
    return OF_THE_BATCH if all(one.axis is None for one in of) else LOST


RULES: Rules = {ArgsortOp: ordered, GroupedMmOp: grouped, GroupedOuterOp: grouped}
