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
    is_alike,
    linear,
    sum_of_samples,
)
from csrun.cirh.ops import indexing
from csrun.cirh.ops.base import integer
from csrun.cirh.types import shape_of, type_of


def gathered(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Per sample: all operands with samples have them on the same axis, with all samples."""
    dim, out = integer(op.properties, "dim"), shape_of(type_of(op.results[0]))
    found = {one.place for one in of if one.axis is not None}
    if not found:
        return OF_THE_BATCH
    place = found.pop()
    axis = place.axis
    if found or axis is None or of[0].axis == dim or (axis == dim and of[0].over is not SAME):
        return LOST
    sizes = {shape_of(type_of(value))[axis] for value in op.operands}
    if axis != dim and sizes != {out[axis]}:
        return LOST
    alone = all(
        one.over is SAMPLES or (one.over is SAME and (axis == dim or _is_alike_on(value, axis)))
        for value, one in zip(op.operands, of, strict=True)
    )
    return Dependence(SAMPLES if alone else MIXED).at(place)


def _is_alike_on(value: SSAValue, axis: int) -> bool:
    return is_alike(value, axis - len(shape_of(type_of(value))))


def gathered_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Summed over samples if the lookup was along their axis."""
    dim = integer(op.properties, "dim")
    grad, indices = of
    if grad.axis is None and indices.axis is not None:
        return _put_alike(op.operands[0], grad, indices, dim)
    if grad.axis is None or (indices.axis is not None and indices.place != grad.place):
        return OF_THE_BATCH if grad.axis is indices.axis is None else LOST
    if grad.axis == dim:
        return sum_of_samples(grad) if indices.axis == dim else LOST
    if indices.axis is None and not _is_alike_on(op.operands[1], grad.axis):
        return LOST
    over = SAMPLES if grad.over is SAMPLES and indices.over in (SAMPLES, SAME) else MIXED
    return follow_gradient(Dependence(over).at(grad.place), grad)


def _put_alike(value: SSAValue, grad: Dependence, indices: Dependence, dim: int) -> Dependence:
    """Constant values for all samples, such as ones, at indices of each sample."""
    axis = indices.axis
    if axis is None or axis == dim or not _is_alike_on(value, axis):
        return LOST
    alone = grad.over is SAME and indices.over is SAMPLES
    return Dependence(SAMPLES if alone else MIXED).at(indices.place)


def selected(op: Operation, of: Sequence[Dependence]) -> Dependence:
    dim = integer(op.properties, "dim")
    x, indices = of
    if x.axis is None and indices.axis is not None:
        return Dependence(SAMPLES if x.over is SAME else MIXED).at(indices.on(dim).place)
    if indices.axis is not None or x.axis == dim:
        return LOST if x.axis is not None else OF_THE_BATCH
    return linear(x)


def selected_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    dim = integer(op.properties, "dim")
    grad, indices = of
    if grad.axis == dim and grad.axis is not None:
        return sum_of_samples(grad) if indices.place == grad.on(0).place else LOST
    return linear(grad) if indices.axis is None else LOST


RULES: Rules = {
    indexing.GatherOp: gathered,
    indexing.GatherBackwardOp: gathered_backward,
    indexing.IndexSelectOp: selected,
    indexing.IndexSelectBackwardOp: selected_backward,
}
