"""Elementwise operators."""

from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    LOST,
    MIXED,
    OF_THE_BATCH,
    PART,
    SAME,
    SAMPLES,
    Dependence,
    SampleAxis,
    is_constant_along,
)
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.types import is_float, shape_of, type_of


def elementwise(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Operands broadcast; those with samples must have them on the same axis of the result."""
    out = shape_of(type_of(op.results[0]))
    found: set[SampleAxis] = set()
    for value, one in zip(op.operands, of, strict=True):
        if one.axis is not None:
            own = shape_of(type_of(value))
            axis = one.axis + len(out) - len(own)
            if own[one.axis] != out[axis]:
                return LOST
            found.add(one.on(axis).sample_axis)
    if not found:
        return Dependence(PART) if _is_linear(op, of) else OF_THE_BATCH
    if len(found) > 1:
        return LOST
    (sample_axis,) = found
    assert sample_axis.axis is not None, "an axis of samples"
    alone = all(
        one.over is SAMPLES
        or (one.over is SAME and is_constant_along(value, sample_axis.axis - len(out)))
        for value, one in zip(op.operands, of, strict=True)
    )
    padding = 0 if _is_zero_in_padding(op, of) else None
    return Dependence(SAMPLES if alone else MIXED, padding=padding).at(sample_axis)


def _is_zero_in_padding(op: Operation, of: Sequence[Dependence]) -> bool:
    """Return whether zeros in padding stay zero, given finite other operands."""
    assert isinstance(op, CirhOp), "a module holds operators of CIRH only"
    return any(all(of[i].is_zero_in_padding for i in linear) for linear in op.LINEAR_IN)


def _is_linear(op: Operation, of: Sequence[Dependence]) -> bool:
    """Return whether the operator maps a sum's parts to parts of the result."""
    assert isinstance(op, CirhOp), "a module holds operators of CIRH only"
    parts = {i for i, one in enumerate(of) if one.over is PART}
    others = all(one.over is SAME for i, one in enumerate(of) if i not in parts)
    return others and parts in op.LINEAR_IN and not _rounds(op)


def _rounds(op: Operation) -> bool:
    """Return whether the result type drops fractions of an operand."""
    kind = type_of(op.results[0])
    return not is_float(kind) and any(type_of(value) != kind for value in op.operands)
