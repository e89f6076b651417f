"""Dropout."""

from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import FIXED, SAMPLES, Dependence, Rules
from csrun.cirh.ops.random import DropoutMaskOp


def dropout_mask(op: Operation, of: Sequence[Dependence]) -> Dependence:
    assert isinstance(op, DropoutMaskOp)
    return Dependence(SAMPLES, 0, op.rows_per_sample) if op.rows_per_sample else FIXED


RULES: Rules = {DropoutMaskOp: dropout_mask}
