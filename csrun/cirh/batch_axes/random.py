"""Dropout masks and random numbers."""

from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import FIXED, SAMPLES, Dependence, Rules
from csrun.cirh.ops.random import DropoutMaskOp, UniformOp


def drawn(op: Operation, of: Sequence[Dependence]) -> Dependence:
    assert isinstance(op, DropoutMaskOp | UniformOp)
    return Dependence(SAMPLES, 0, op.rows_per_sample) if op.rows_per_sample else FIXED


RULES: Rules = {DropoutMaskOp: drawn, UniformOp: drawn}
