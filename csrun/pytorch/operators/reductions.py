"""Sums, means, norms, extrema, sorting."""

from math import inf, prod
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from csrun.cirh.ops.arithmetic import AddOp, DivOp, ExpOp, LogOp, MulOp, NegOp, SqrtOp, SubOp
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.comparison import EqOp, MaximumOp, NeOp, WhereOp
from csrun.cirh.ops.concatenation import CatOp
from csrun.cirh.ops.indexing import GatherOp
from csrun.cirh.ops.powers import AbsOp, PowOp
from csrun.cirh.ops.reductions import AmaxOp, AminOp, ArgmaxOp, SumOp
from csrun.cirh.ops.shape import SliceOp
from csrun.cirh.ops.sorting import ArgsortOp
from csrun.pytorch.operators.base import (
    Emission,
    Emitter,
    at_least_1d,
    axes,
    axis,
    dtype,
    floats,
    name_of,
    shape,
)


def total(e: Emission, x: SSAValue, dims: Any = None, keepdim: bool = False, **to: Any) -> SSAValue:
    """Sum, in int64 for integers and bool."""
    if (kind := to.get("dtype")) is not None:
        x = e.cast(x, name_of(kind))
    elif not floats(x):
        x = e.cast(x, "int64")
    found = axes(dims, x)
    return e.emit(SumOp, x, dims=found, keepdim=keepdim) if found else x


def mean(e: Emission, x: SSAValue, dims: Any = None, keepdim: bool = False, **to: Any) -> SSAValue:
    found = total(e, x, dims, keepdim, **to)
    count = prod(shape(x)[d] for d in axes(dims, x))
    return e.emit(DivOp, found, e.full(count, dtype(found)))


def variance(
    e: Emission,
    x: SSAValue,
    dims: Any = None,
    correction: float | None = None,
    keepdim: bool = False,
) -> SSAValue:
    found = axes(dims, x)
    count = prod(shape(x)[d] for d in found)
    middle = e.emit(SumOp, x, dims=found, keepdim=True)
    middle = e.emit(DivOp, middle, e.full(count, dtype(x)))
    centred = e.emit(SubOp, x, middle)
    squares = e.emit(SumOp, e.emit(MulOp, centred, centred), dims=found, keepdim=keepdim)
    return e.emit(
        DivOp, squares, e.full(max(count - (1 if correction is None else correction), 0), dtype(x))
    )


def deviation(e: Emission, x: SSAValue, *dims: Any, **options: Any) -> SSAValue:
    return e.emit(SqrtOp, variance(e, x, *dims, **options))


def variance_and_mean(
    e: Emission, x: SSAValue, dims: Any = None, keepdim: bool = False, **options: Any
) -> tuple[SSAValue, SSAValue]:
    return variance(e, x, dims, keepdim=keepdim, **options), mean(e, x, dims, keepdim)


def extremum(kind: type[CirhOp]) -> Emitter:
    """Return the emitter of a maximum or minimum along axes."""

    def emit(e: Emission, x: SSAValue, dims: Any = None, keepdim: bool = False) -> SSAValue:
        return e.emit(kind, x, dims=axes(dims, x), keepdim=keepdim)

    return emit


def arg_extremum(largest: bool) -> Emitter:
    """Return the emitter of argmax or argmin along an axis, or over all."""

    def emit(e: Emission, x: SSAValue, dim: int | None = None, keepdim: bool = False) -> SSAValue:
        x = x if largest else e.emit(NegOp, x)
        if dim is None:
            return e.view(e.emit(ArgmaxOp, e.view(x, (prod(shape(x)),)), dim=0), e.sizes)
        return e.view(e.emit(ArgmaxOp, x, dim=axis(dim, x)), e.sizes)

    return emit


def extremum_with_index(largest: bool) -> Emitter:
    """Return the emitter of an extremum and its index along an axis."""

    def emit(
        e: Emission, x: SSAValue, dim: int, keepdim: bool = False
    ) -> tuple[SSAValue, SSAValue]:
        dim = axis(dim, x)
        indices = e.emit(ArgmaxOp, x if largest else e.emit(NegOp, x), dim=dim)
        kept = e.view(indices, (*shape(x)[:dim], 1, *shape(x)[dim + 1 :]))
        found = e.emit(GatherOp, x, kept, dim=dim)
        return e.view(found, e.sizes), e.view(indices, e.sizes)

    return emit


MOST_PASSES = 32  # over the axis, each for one value: more are sorted


def largest(
    e: Emission, x: SSAValue, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[SSAValue, SSAValue]:
    """Emit the k largest or smallest along an axis and their indices, by k argmax passes.

    More than a few, and integers, are sorted. Of equal values the first comes first, where PyTorch
    may return any.
    """
    dim, sizes = axis(dim, x), shape(x)
    if k > MOST_PASSES or not floats(x):
        values, order = sort(e, x, dim, largest)
        first = {"dim": dim, "start": 0, "end": k, "step": 1}
        return e.emit(SliceOp, values, **first), e.emit(SliceOp, order, **first)
    along = tuple(size if n == dim else 1 for n, size in enumerate(sizes))
    of_one = tuple(1 if n == dim else size for n, size in enumerate(sizes))
    numbers = e.expand(e.constant(np.arange(sizes[dim]).reshape(along)), sizes)
    least = -np.finfo(dtype(x)).max
    # above -inf, which marks the elements that are taken
    if largest:
        left = e.emit(MaximumOp, x, e.full(float(least), dtype(x)))
    else:  # NaN is above all
        second = np.nextafter(least, np.zeros_like(least))
        left = e.emit(MaximumOp, e.emit(NegOp, x), e.full(float(second), dtype(x)))
        left = e.emit(WhereOp, e.emit(NeOp, x, x), e.full(float(least), dtype(x)), left)
    found = []
    for _ in range(k):
        found.append(e.view(e.emit(ArgmaxOp, left, dim=dim), of_one))
        is_taken = e.emit(EqOp, e.expand(found[-1], sizes), numbers)
        left = e.emit(WhereOp, is_taken, e.full(-inf, dtype(x)), left)
    indices = found[0] if k == 1 else e.emit(CatOp, *found, dim=dim)
    return e.emit(GatherOp, x, indices, dim=dim), indices


def sort(
    e: Emission, x: SSAValue, dim: int = -1, descending: bool = False
) -> tuple[SSAValue, SSAValue]:
    dim = axis(dim, x)
    if floats(x) and shape(x)[dim] <= MOST_PASSES:
        return largest(e, x, shape(x)[dim], dim, descending)
    numbers = e.cast(x, "int32") if dtype(x) == "bool" else x
    indices = e.emit(ArgsortOp, numbers, dim=dim, descending=descending)
    return e.emit(GatherOp, x, indices, dim=dim), indices


def norm(
    e: Emission,
    x: SSAValue,
    order: float = 2,
    dims: Any = None,
    keepdim: bool = False,
    **unused: Any,
) -> SSAValue:
    """Vector norm of an order: an extremum for infinity, a count for 0."""
    if order == 2:
        squares = e.emit(SumOp, e.emit(MulOp, x, x), dims=axes(dims, x), keepdim=keepdim)
        return e.emit(SqrtOp, squares)
    sizes = e.emit(AbsOp, x)
    if order == 1:
        return e.emit(SumOp, sizes, dims=axes(dims, x), keepdim=keepdim)
    if order == inf:
        return e.emit(AmaxOp, sizes, dims=axes(dims, x), keepdim=keepdim)
    if order == -inf:
        return e.emit(AminOp, sizes, dims=axes(dims, x), keepdim=keepdim)
    if order == 0:
        counted = e.cast(e.emit(NeOp, x, e.full(0, dtype(x))), dtype(x))
        return e.emit(SumOp, counted, dims=axes(dims, x), keepdim=keepdim)
    powers = e.emit(PowOp, sizes, e.full(order, dtype(x)))
    total = e.emit(SumOp, powers, dims=axes(dims, x), keepdim=keepdim)
    return e.emit(PowOp, total, e.full(1 / order, dtype(x)))


def logsumexp(e: Emission, x: SSAValue, dims: Any, keepdim: bool = False) -> SSAValue:
    """Log-sum-exp; an infinite maximum is not subtracted, as inf - inf is NaN."""
    found = axes(dims, x)
    top = e.emit(AmaxOp, x, dims=found, keepdim=True)
    zero = e.full(0, dtype(x))
    is_infinite = e.emit(EqOp, e.emit(AbsOp, top), e.full(inf, dtype(x)))
    top = e.emit(WhereOp, is_infinite, zero, top)
    total = e.emit(SumOp, e.emit(ExpOp, e.emit(SubOp, x, top)), dims=found, keepdim=True)
    return e.view(e.emit(AddOp, e.emit(LogOp, total), top), e.sizes)


EMITTERS: dict[str, Emitter] = {
    "aten.sum.default": total,
    "aten.sum.dim_IntList": total,
    "aten.mean.default": mean,
    "aten.mean.dim": mean,
    "aten.var.correction": variance,
    "aten.std.correction": deviation,
    "aten.var_mean.correction": variance_and_mean,
    "aten.amax.default": extremum(AmaxOp),
    "aten.amin.default": extremum(AminOp),
    "aten.max.default": extremum(AmaxOp),
    "aten.min.default": extremum(AminOp),
    "aten.max.dim": at_least_1d(extremum_with_index(True)),
    "aten.min.dim": at_least_1d(extremum_with_index(False)),
    "aten.topk.default": at_least_1d(largest),
    "aten.sort.default": at_least_1d(sort),
    "aten.sort.stable": lambda e, x, stable=None, dim=-1, descending=False: sort(
        e, x, dim, descending
    ),
    "aten.argmax.default": at_least_1d(arg_extremum(True)),
    "aten.argmin.default": at_least_1d(arg_extremum(False)),
    "aten.linalg_vector_norm.default": norm,
    "aten.logsumexp.default": logsumexp,
}
