"""Matrix products."""

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    LOST,
    MIXED,
    OF_THE_BATCH,
    PART,
    SAME,
    SAMPLES,
    Dependence,
    Rules,
    is_constant_along,
    linear,
    sum_of_samples,
)
from csrun.cirh.batch_axes.elementwise import elementwise
from csrun.cirh.ops.products import AddmmOp, MatmulOp, MmOp
from csrun.cirh.types import shape_of, type_of


def product(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Samples are rows of the left matrix or columns of the right one; a sum over samples is a
    part.

    The other operand may be equal for all samples.
    """
    left, right = of
    if (left.axis, right.axis) == (1, 0):
        same = left.on(0).sample_axis == right.sample_axis
        return sum_of_samples(left, right) if same else LOST
    lhs, rhs = op.operands[-2:]
    if left.axis == 1 and right.over is SAME and is_constant_along(rhs, -2):
        return sum_of_samples(left)
    if right.axis == 0 and left.over is SAME and is_constant_along(lhs, -1):
        return sum_of_samples(right)
    if left.axis == 0 and right.axis is None:
        return replace(left, over=SAMPLES if (left.over, right.over) == (SAMPLES, SAME) else MIXED)
    if right.axis == 1 and left.axis is None:
        return replace(right, over=SAMPLES if (left.over, right.over) == (SAME, SAMPLES) else MIXED)
    if left.axis is None and right.axis is None and {left.over, right.over} == {PART, SAME}:
        return Dependence(PART)
    return OF_THE_BATCH if left.axis is right.axis is None else LOST


def products(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Per sample over a leading axis, else as a product of two matrices."""
    left, right = of
    ranks = [len(shape_of(type_of(value))) for value in (*op.operands, op.results[0])]
    axes = [
        None if one.axis is None else one.axis - rank for one, rank in zip(of, ranks, strict=False)
    ]
    if any(axis is not None and axis < -2 for axis in axes):
        return elementwise(op, of) if not {-1, -2} & set(axes) else LOST
    if axes == [-1, -2] and left.on(right.axis).sample_axis == right.sample_axis:
        return sum_of_samples(left, right)
    if axes[0] == -2 and right.over is SAME:
        return linear(left.on(ranks[2] - 2))
    if axes[1] == -1 and left.over is SAME:
        return linear(right.on(ranks[2] - 1))
    return OF_THE_BATCH if left.axis is right.axis is None else LOST


def affine(op: Operation, of: Sequence[Dependence]) -> Dependence:
    bias, *factors = of
    found = product(op, factors)
    if bias.axis is None and found.axis is None:
        return replace(found, over=MIXED)
    if found.axis == 0 and bias.axis is None:
        return replace(found, padding=None, over=found.over if bias.over is SAME else MIXED)
    return LOST


RULES: Rules = {
    MmOp: product,
    AddmmOp: affine,
    MatmulOp: products,
}
