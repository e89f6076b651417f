"""Views and slices."""

from collections.abc import Sequence
from dataclasses import replace
from math import prod

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    LOST,
    MIXED,
    SAME,
    Dependence,
    Rules,
    SampleAxis,
    is_constant_along,
    linear,
)
from csrun.cirh.ops import concatenation, shape
from csrun.cirh.ops.base import integer, ints
from csrun.cirh.types import shape_of, type_of


def view(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Return the axis with all samples, in the same order; a separate axis is preferred."""
    (one,) = of
    if one.axis is None:
        return one
    old, new = shape_of(type_of(op.operands[0])), shape_of(type_of(op.results[0]))
    samples, before = old[one.axis] // one.sample_axis.count, prod(old[: one.axis]) * one.outer
    if not samples or not before or not all(new):
        return LOST
    fitting = [
        SampleAxis(axis, outer, size // (outer * samples))
        for axis, size in enumerate(new)
        for outer in [before // prod(new[:axis])]
        if before % prod(new[:axis]) == 0 and size % (outer * samples) == 0
    ]
    if not fitting:
        return LOST
    least = min(each.outer for each in fitting)
    first, *others = [each for each in fitting if each.outer == least]
    same = [each for each in (first, *others) if each.axis == one.axis]
    return one.at(same[0] if same else first)  # with one sample any axis would do


def expand(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    if one.axis is None:
        return Dependence(one.over)
    old, new = shape_of(type_of(op.operands[0])), shape_of(type_of(op.results[0]))
    axis = one.axis + len(new) - len(old)
    return one.on(axis if old[one.axis] == new[axis] else None)


def permute(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    return one if one.axis is None else one.on(ints(op.properties, "dims").index(one.axis))


def transpose(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    return one if one.axis is None else one.on(1 - one.axis)


def sliced(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """A slice, or its gradient: of the batch as a whole if it is cut along the samples."""
    (one,) = of
    is_cut = one.axis is not None and one.axis == integer(op.properties, "dim")
    return LOST if is_cut else linear(one)


def selection(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    dim = integer(op.properties, "dim")
    if one.axis is None:
        return one
    return LOST if one.axis == dim else one.on(one.axis - (dim < one.axis))


def selection_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    dim = integer(op.properties, "dim")
    return one if one.axis is None else linear(one.on(one.axis + (dim <= one.axis)))


def cat(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Samples are on the same axis of all operands, which is not the concatenated one.

    Other operands may be equal for all samples.
    """
    own = [one for one in of if one.axis is not None]
    if not own:
        return Dependence(of[0].over if len({one.over for one in of}) == 1 else MIXED)
    first, sample_axes = own[0], {one.sample_axis for one in own}
    if len(sample_axes) > 1 or first.axis is None or first.axis == integer(op.properties, "dim"):
        return LOST
    from_end = first.axis - len(shape_of(type_of(op.results[0])))
    others = [(value, one) for value, one in zip(op.operands, of, strict=True) if one not in own]
    if not all(one.over is SAME and is_constant_along(value, from_end) for value, one in others):
        return LOST
    over = first.over if len({one.over for one in own}) == 1 else MIXED
    padding = first.padding if len({one.padding for one in of}) == 1 else None
    return replace(first, over=over, padding=padding)


RULES: Rules = {
    shape.ViewOp: view,
    shape.ExpandOp: expand,
    shape.PermuteOp: permute,
    shape.TransposeOp: transpose,
    shape.SliceOp: sliced,
    shape.SelectOp: selection,
    shape.SliceBackwardOp: sliced,
    shape.SelectBackwardOp: selection_backward,
    concatenation.CatOp: cat,
}
