"""Functions of matrices: each matrix by itself, and each column of what is solved for."""

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    LOST,
    MIXED,
    OF_THE_BATCH,
    SAME,
    SAMPLES,
    Dependence,
    Rules,
    combine_dependences,
)
from csrun.cirh.ops.linear_algebra import OPS, LuSolveOp, SolveTriangularOp
from csrun.cirh.types import shape_of, type_of


def of_matrices(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """The samples are on an axis of all operands that counts matrices."""
    if all(one.axis is None for one in of):
        return OF_THE_BATCH
    if any(one.axis is None for one in of):
        return LOST
    return combine_dependences(of, (), len(shape_of(type_of(op.operands[0]))) - 2)


def of_columns(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """The samples may also be on the columns of the right-hand side."""
    *factors, side = of
    is_column = side.axis == len(shape_of(type_of(op.operands[-1]))) - 1
    if not is_column or any(one.axis is not None for one in factors):
        return of_matrices(op, of)
    is_alone = side.over is SAMPLES and all(one.over is SAME for one in factors)
    return replace(side, over=SAMPLES if is_alone else MIXED, padding=None)


RULES: Rules = {
    **dict.fromkeys(OPS, of_matrices),
    SolveTriangularOp: of_columns,
    LuSolveOp: of_columns,
}
