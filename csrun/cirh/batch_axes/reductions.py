"""Reductions."""

from collections.abc import Sequence
from dataclasses import replace

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    LOST,
    OF_THE_BATCH,
    Dependence,
    Rules,
    linear,
    sum_of_samples,
)
from csrun.cirh.ops.base import integer, ints
from csrun.cirh.ops.reductions import AmaxOp, AminOp, ArgmaxOp, ExtremumOp, SumOp
from csrun.cirh.types import shape_of, type_of


def total(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    dims = ints(op.properties, "dims")
    if one.axis is None:
        return one
    if one.axis in dims:
        return sum_of_samples(one)
    kept = len(shape_of(type_of(op.results[0]))) == len(shape_of(type_of(op.operands[0])))
    axis = one.axis if kept else one.axis - sum(d < one.axis for d in dims)
    return linear(replace(one, axis=axis))


def extremum(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Rule of a maximum over all samples, if padding holds a value that is never selected."""
    assert isinstance(op, ExtremumOp)
    (one,) = of
    dims = ints(op.properties, "dims")
    if one.axis is None:
        return OF_THE_BATCH
    if one.axis in dims:
        largest = one.padding is not None and one.padding < 0
        smallest = one.padding is not None and one.padding > 0
        chosen = smallest if isinstance(op, AmaxOp) else largest
        return LOST if one.padding in (None, 0) or chosen else OF_THE_BATCH
    kept = len(shape_of(type_of(op.out))) == len(shape_of(type_of(op.x)))
    axis = one.axis if kept else one.axis - sum(d < one.axis for d in dims)
    return linear(replace(one, axis=axis))


def argmax(op: Operation, of: Sequence[Dependence]) -> Dependence:
    (one,) = of
    dim = integer(op.properties, "dim")
    if one.axis is None:
        return OF_THE_BATCH
    if one.axis == dim:
        return LOST
    return replace(one.on(one.axis - (dim < one.axis)), padding=None)


RULES: Rules = {SumOp: total, AmaxOp: extremum, AminOp: extremum, ArgmaxOp: argmax}
