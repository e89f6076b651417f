"""Medians, values by rank, running extrema."""

from collections.abc import Callable
from math import prod

import numpy as np
from xdsl.ir import SSAValue

from csrun.cirh.ops.arithmetic import SubOp
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.comparison import EqOp, GtOp, MaximumOp, MinimumOp, NeOp, WhereOp
from csrun.cirh.ops.indexing import GatherOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.rounding import FloorDivideOp
from csrun.cirh.ops.sorting import ArgsortOp
from csrun.pytorch.operators.base import (
    Emission,
    Emitter,
    at_least_1d,
    axis,
    dtype,
    floats,
    shape,
)
from csrun.pytorch.operators.scans import scan

Found = tuple[SSAValue, SSAValue]


def _at_rank(e: Emission, x: SSAValue, dim: int, position: SSAValue) -> Found:
    """Emit the value at a rank in ascending order, in which NaN is above all, and its index.

    Shapes: x [..., N, ...], position [..., 1, ...] int64
    """
    numbers = e.cast(x, "int32") if dtype(x) == "bool" else x
    order = e.emit(ArgsortOp, numbers, dim=dim, descending=False)
    found = e.emit(GatherOp, order, position, dim=dim)
    return e.view(e.emit(GatherOp, x, found, dim=dim), e.sizes), e.view(found, e.sizes)


def _same_position(e: Emission, x: SSAValue, dim: int, position: int) -> SSAValue:
    return e.full(position, "int64", tuple(1 if d == dim else n for d, n in enumerate(shape(x))))


def _nan_counts(e: Emission, x: SSAValue, dim: int) -> SSAValue:
    counted = e.cast(e.emit(NeOp, x, x), "int64")
    return e.emit(SumOp, counted, dims=(dim,), keepdim=True)


def median(e: Emission, x: SSAValue, dim: int, keepdim: bool = False) -> Found:
    """The lower one of two middle values; the first NaN if there is one."""
    dim = axis(dim, x)
    size = shape(x)[dim]
    position = _same_position(e, x, dim, (size - 1) // 2)
    if floats(x):
        counts = _nan_counts(e, x, dim)
        first = e.emit(SubOp, e.full(size, "int64"), counts)
        position = e.emit(WhereOp, e.emit(GtOp, counts, e.full(0, "int64")), first, position)
    return _at_rank(e, x, dim, position)


def nanmedian(e: Emission, x: SSAValue, dim: int, keepdim: bool = False) -> Found:
    """The median of the values other than NaN; the first NaN if there are none."""
    if not floats(x):
        return median(e, x, dim)
    dim = axis(dim, x)
    last = e.emit(SubOp, e.full(shape(x)[dim] - 1, "int64"), _nan_counts(e, x, dim))
    zero, two = e.full(0, "int64"), e.full(2, "int64")
    position = e.emit(FloorDivideOp, e.emit(MaximumOp, last, zero), two)
    return _at_rank(e, x, dim, position)


def kth_value(e: Emission, x: SSAValue, k: int, dim: int = -1, keepdim: bool = False) -> Found:
    dim = axis(dim, x)
    return _at_rank(e, x, dim, _same_position(e, x, dim, k - 1))


def of_all(emitter: Callable[..., Found]) -> Emitter:
    """Return the emitter of the value over all elements, without its index."""

    def emit(e: Emission, x: SSAValue) -> SSAValue:
        value, _ = emitter(e, e.view(x, (prod(shape(x)),)), 0)
        return value

    return emit


def running_extremum(kind: type[CirhOp], is_largest: bool) -> Emitter:
    """Return the emitter of a running maximum or minimum and its index, the last of equal ones.

    NaN stays.
    """

    def emit(e: Emission, x: SSAValue, dim: int) -> Found:
        dim, sizes, name = axis(dim, x), shape(x), dtype(x)
        limits = (-np.inf, np.inf) if floats(x) else _limits(name)
        numbers = e.cast(x, "int32") if name == "bool" else x
        found = scan(
            e, numbers, dim, lambda a, b: e.emit(kind, a, b), limits[0 if is_largest else 1]
        )
        found = e.cast(found, name)
        is_found = e.emit(EqOp, x, found)
        along = tuple(size if n == dim else 1 for n, size in enumerate(sizes))
        indices = e.expand(e.constant(np.arange(sizes[dim]).reshape(along)), sizes)
        none = e.expand(e.full(-1, "int64"), sizes)
        taken = e.emit(WhereOp, is_found, indices, none)
        if floats(x):
            taken = e.emit(WhereOp, e.emit(NeOp, x, x), indices, taken)
        return found, scan(e, taken, dim, lambda a, b: e.emit(MaximumOp, a, b), -1)

    return emit


def _limits(name: str) -> tuple[float, float]:
    """Return the extreme integers that a float represents."""
    found = np.iinfo("int32" if name == "bool" else name)
    return float(found.min), float(np.nextafter(found.max + 1.0, 0))


EMITTERS: dict[str, Emitter] = {
    "aten.median.default": of_all(median),
    "aten.median.dim": at_least_1d(median),
    "aten.nanmedian.default": of_all(nanmedian),
    "aten.nanmedian.dim": at_least_1d(nanmedian),
    "aten.kthvalue.default": at_least_1d(kth_value),
    "aten.cummax.default": at_least_1d(running_extremum(MaximumOp, True)),
    "aten.cummin.default": at_least_1d(running_extremum(MinimumOp, False)),
}
