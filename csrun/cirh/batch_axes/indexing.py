"""Lookups along an axis."""

from collections.abc import Sequence

from xdsl.ir import Operation, SSAValue

from csrun.cirh.batch_axes.base import (
    LOST,
    MIXED,
    OF_THE_BATCH,
    SAME,
    SAMPLES,
    Dependence,
    Rules,
    follow_gradient,
    is_constant_along,
    linear,
    sum_of_samples,
)
from csrun.cirh.ops import indexing
from csrun.cirh.ops.base import integer
from csrun.cirh.types import shape_of, type_of


def gathered(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Per sample: all operands with samples have them on the same axis, with all samples."""
    dim, out = integer(op.properties, "dim"), shape_of(type_of(op.results[0]))
    found = {one.sample_axis for one in of if one.axis is not None}
    if not found:
        return OF_THE_BATCH
    sample_axis = found.pop()
    axis = sample_axis.axis
    if found or axis is None or of[0].axis == dim or (axis == dim and of[0].over is not SAME):
        return LOST
    sizes = {shape_of(type_of(value))[axis] for value in op.operands}
    if axis != dim and sizes != {out[axis]}:
        return LOST
    alone = all(
        one.over is SAMPLES or (one.over is SAME and (axis == dim or _is_constant_on(value, axis)))
        for value, one in zip(op.operands, of, strict=True)
    )
    return Dependence(SAMPLES if alone else MIXED).at(sample_axis)


def _is_constant_on(value: SSAValue, axis: int) -> bool:
    return is_constant_along(value, axis - len(shape_of(type_of(value))))


def gathered_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Summed over samples if the lookup was along their axis."""
    dim = integer(op.properties, "dim")
    grad, indices = of
    if grad.axis is None and indices.axis is not None:
        return _scatter_constant(op.operands[0], grad, indices, dim)
    if grad.axis is None or (indices.axis is not None and indices.sample_axis != grad.sample_axis):
        return OF_THE_BATCH if grad.axis is indices.axis is None else LOST
    if grad.axis == dim:
        return sum_of_samples(grad) if indices.axis == dim else LOST
    if indices.axis is None and not _is_constant_on(op.operands[1], grad.axis):
        return LOST
    over = SAMPLES if grad.over is SAMPLES and indices.over in (SAMPLES, SAME) else MIXED
    return follow_gradient(Dependence(over).at(grad.sample_axis), grad)


def _scatter_constant(
    value: SSAValue, grad: Dependence, indices: Dependence, dim: int
) -> Dependence:
    """Constant values for all samples, such as ones, at indices of each sample."""
    axis = indices.axis
    if axis is None or axis == dim or not _is_constant_on(value, axis):
        return LOST
    alone = grad.over is SAME and indices.over is SAMPLES
    return Dependence(SAMPLES if alone else MIXED).at(indices.sample_axis)


def selected(op: Operation, of: Sequence[Dependence]) -> Dependence:
    dim = integer(op.properties, "dim")
    x, indices = of
    if x.axis is None and indices.axis is not None:
        return Dependence(SAMPLES if x.over is SAME else MIXED).at(indices.on(dim).sample_axis)
    if indices.axis is not None or x.axis == dim:
        return LOST if x.axis is not None else OF_THE_BATCH
    return linear(x)


def selected_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    dim = integer(op.properties, "dim")
    grad, indices = of
    if grad.axis == dim and grad.axis is not None:
        return sum_of_samples(grad) if indices.sample_axis == grad.on(0).sample_axis else LOST
    return linear(grad) if indices.axis is None else LOST


RULES: Rules = {
    indexing.GatherOp: gathered,
    indexing.GatherBackwardOp: gathered_backward,
    indexing.IndexSelectOp: selected,
    indexing.IndexSelectBackwardOp: selected_backward,
}
