"""Writes by index tensors: index_add, index_put, scatter, put."""

from math import prod
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from csrun.cirh.ops import indexing as ops
from csrun.cirh.ops.arithmetic import AddOp, DivOp, MulOp, SubOp
from csrun.cirh.ops.base import Plain
from csrun.cirh.ops.comparison import GtOp, MaximumOp, WhereOp
from csrun.cirh.ops.model import FullOp
from csrun.cirh.ops.rounding import FloorDivideOp
from csrun.cirh.ops.shape import SliceOp
from csrun.pytorch.operators.base import (
    Emission,
    Emitter,
    axis,
    dtype,
    floats,
    rank,
    shape,
    unsupported,
)
from csrun.pytorch.operators.indexing import constant_value, flatten_indices, wrap_negative
from csrun.pytorch.operators.scans import scan


def index_add(
    e: Emission, x: SSAValue, dim: int, indices: SSAValue, source: SSAValue, alpha: float = 1
) -> SSAValue:
    """x plus the gradient of index_select."""
    if alpha != 1:
        source = e.emit(MulOp, source, e.full(alpha, dtype(source)))
    if not rank(x):
        return e.emit(AddOp, x, e.view(source, ()))
    options: dict[str, Plain] = {"input_sizes": shape(x), "dim": axis(dim, x)}
    flat = e.view(indices, (prod(shape(indices)),))
    return _add(e, x, e.emit(ops.IndexSelectBackwardOp, source, flat, **options))


def index_put(
    e: Emission,
    x: SSAValue,
    indices: Any,
    values: SSAValue,
    accumulate: bool = False,
    *,
    is_distinct: bool = False,
) -> SSAValue:
    """Write or add values at indices of one or more axes, or write where a mask is true.

    is_distinct: the indices are known not to repeat.
    """
    given = [(d, one) for d, one in enumerate(indices) if one is not None]
    if any(dtype(one) == "bool" for _, one in given):
        return _put_by_mask(e, x, given, values, accumulate)
    if dtype(x) == "bool":
        numbers, put = e.cast(x, "int32"), e.cast(values, "int32")
        found = index_put(e, numbers, indices, put, accumulate, is_distinct=is_distinct)
        return e.cast(found, "bool")
    if len(given) == 1:
        ((dim, index),) = given
        index, sizes = wrap_negative(e, index, shape(x)[dim]), shape(x)
        flat = e.view(index, (prod(shape(index)),))
        wanted = (*sizes[:dim], *shape(index), *sizes[dim + 1 :])
        rows = e.view(e.expand(values, wanted), (*sizes[:dim], *shape(flat), *sizes[dim + 1 :]))
        return _put(e, x, dim, flat, rows, accumulate, is_distinct)
    return _put_by_several(e, x, given, values, accumulate, is_distinct)


def index_copy(
    e: Emission,
    x: SSAValue,
    dim: int,
    indices: SSAValue,
    source: SSAValue,
    *,
    is_distinct: bool = False,
) -> SSAValue:
    """Write slices at indices of an axis. is_distinct: as in `index_put`"""
    if not rank(x):
        return e.view(source, ())
    flat = e.view(indices, (prod(shape(indices)),))
    index = (*(None for _ in range(axis(dim, x))), flat)
    return index_put(e, x, index, source, is_distinct=is_distinct)


def _put_by_mask(
    e: Emission, x: SSAValue, given: Any, values: SSAValue, accumulate: bool
) -> SSAValue:
    """Write a single value where a mask is true."""
    (dim, mask), *others = given
    if others or accumulate or prod(shape(values)) != 1:
        got = "accumulate=True" if accumulate else f"shape {list(shape(values))}"
        raise unsupported(
            "a write by a mask takes one value", got, "do it in forward, or use torch.where"
        )
    others = rank(x) - dim - rank(mask)
    wide = e.expand(e.view(mask, (*shape(mask), *(1 for _ in range(others)))), shape(x))
    return e.emit(WhereOp, wide, e.cast(e.view(values, ()), dtype(x)), x)


def _put_by_several(
    e: Emission, x: SSAValue, given: Any, values: SSAValue, accumulate: bool, is_distinct: bool
) -> SSAValue:
    """Write by several indices: their axes become one, indexed by flat numbers."""
    dims, sizes = [d for d, _ in given], shape(x)
    wide = np.broadcast_shapes(*(shape(one) for _, one in given))
    indices = flatten_indices(
        e, [e.expand(one, wide) for _, one in given], [sizes[d] for d in dims]
    )
    others = [d for d in range(rank(x)) if d not in dims]
    order = dims + others
    flat = e.view(e.permute(x, order), (prod(sizes[d] for d in dims), *(sizes[d] for d in others)))
    is_run = dims == list(range(dims[0], dims[0] + len(dims)))
    at = dims[0] if is_run else 0  # position of the indexed axes among those of the values
    full = [sizes[d] for d in others]
    values = e.expand(values, (*full[:at], *wide, *full[at:]))
    moved = [*range(at, at + len(wide)), *range(at), *range(at + len(wide), rank(values))]
    rows = e.view(e.permute(values, moved), (prod(wide), *full))
    found = _put(e, flat, 0, indices, rows, accumulate, is_distinct)
    split = e.view(found, tuple(sizes[d] for d in order))
    return e.permute(split, np.argsort(order).tolist())


def _put(
    e: Emission,
    x: SSAValue,
    dim: int,
    indices: SSAValue,
    rows: SSAValue,
    accumulate: bool,
    is_distinct: bool,
) -> SSAValue:
    """Write or add rows at indices [N] of an axis."""
    options: dict[str, Plain] = {"input_sizes": shape(x), "dim": dim}
    found = e.emit(ops.IndexSelectBackwardOp, e.cast(rows, dtype(x)), indices, **options)
    if accumulate:
        return _add(e, x, found)
    counts = _counts(e, indices, shape(x)[dim], dtype(x))
    if not is_distinct and not _are_distinct(indices):
        if not _is_one_number(rows):
            raise unsupported(
                "index_put needs indices that are known not to repeat, as PyTorch does not define "
                "which value is kept",
                "indices that may repeat",
                "use accumulate=True",
            )
        most = e.emit(MaximumOp, counts, e.full(1, dtype(x)))
        mean = DivOp if floats(x) else FloorDivideOp
        found = e.emit(mean, found, _as_axis(e, most, dim, shape(x)))
    is_put = e.emit(GtOp, _as_axis(e, counts, dim, shape(x)), e.full(0, dtype(x)))
    return e.emit(WhereOp, is_put, found, x)


def _counts(e: Emission, indices: SSAValue, size: int, kind: str) -> SSAValue:
    """Count the occurrences of each index. Shapes: [N] -> [size]"""
    ones = e.full(1, kind, shape(indices))
    return e.emit(ops.IndexSelectBackwardOp, ones, indices, input_sizes=(size,), dim=0)


def _as_axis(e: Emission, x: SSAValue, dim: int, sizes: tuple[int, ...]) -> SSAValue:
    along = tuple(n if d == dim else 1 for d, n in enumerate(sizes))
    return e.expand(e.view(x, along), sizes)


def _are_distinct(indices: SSAValue) -> bool:
    values = constant_value(indices)
    return values is not None and len(np.unique(values)) == values.size


def _is_one_number(x: SSAValue) -> bool:
    """True if all elements of a value are equal."""
    owner: Any = x.owner
    while not isinstance(owner, FullOp) and prod(shape(owner.operands[0])) == 1:
        return True
    return isinstance(owner, FullOp)


def _add(e: Emission, x: SSAValue, added: SSAValue) -> SSAValue:
    return added if _is_zeros(x) else e.emit(AddOp, x, added)


def _is_zeros(x: SSAValue) -> bool:
    owner = x.owner
    return isinstance(owner, FullOp) and owner.value.value.data == 0


def scatter_add(
    e: Emission, x: SSAValue, dim: int, indices: SSAValue, source: SSAValue
) -> SSAValue:
    """x plus the gradient of gather."""
    return _add(e, x, _scatter(e, x, dim, indices, source))


def _scatter(e: Emission, x: SSAValue, dim: int, indices: SSAValue, source: SSAValue) -> SSAValue:
    for d, (own, size) in enumerate(zip(shape(source), shape(indices), strict=True)):
        if own > size:  # the rest is unused
            source = e.emit(SliceOp, source, dim=d, start=0, end=size, step=1)
    if not rank(x):
        return e.view(source, ())
    options: dict[str, Plain] = {"input_sizes": shape(x), "dim": axis(dim, x)}
    return e.emit(ops.GatherBackwardOp, source, indices, **options)


def scatter(e: Emission, x: SSAValue, dim: int, indices: SSAValue, source: SSAValue) -> SSAValue:
    """Scatter to distinct indices: in the backward pass of gather, and to those of topk."""
    if _is_zeros(x):
        return _scatter(e, x, dim, indices, source)
    return e.emit(WhereOp, _is_hit(e, x, dim, indices), _scatter(e, x, dim, indices, source), x)


def scatter_number(e: Emission, x: SSAValue, dim: int, index: SSAValue, value: float) -> SSAValue:
    """Write a number at indices along an axis."""
    return e.emit(WhereOp, _is_hit(e, x, dim, index), e.full(value, dtype(x)), x)


def _is_hit(e: Emission, x: SSAValue, dim: int, indices: SSAValue) -> SSAValue:
    kind = e.precision
    ones = e.full(1, kind, shape(indices))
    return e.emit(GtOp, _scatter(e, x, dim, indices, ones), e.full(0, kind))


def index_fill(e: Emission, x: SSAValue, dim: int, indices: SSAValue, value: Any) -> SSAValue:
    filled = value if isinstance(value, SSAValue) else e.full(value, dtype(x))
    if not rank(x):
        return e.cast(e.view(filled, ()), dtype(x))
    flat = e.view(indices, (prod(shape(indices)),))
    flat = wrap_negative(e, flat, shape(x)[axis(dim, x)])
    counts = _counts(e, flat, shape(x)[axis(dim, x)], e.precision)
    is_put = e.emit(GtOp, counts, e.full(0, e.precision))
    return e.emit(WhereOp, _as_axis(e, is_put, axis(dim, x), shape(x)), filled, x)


def take(e: Emission, x: SSAValue, indices: SSAValue) -> SSAValue:
    """Gather by indices into the flattened tensor."""
    size = prod(shape(x))
    flat = wrap_negative(e, e.view(indices, (prod(shape(indices)),)), size)
    return e.view(e.emit(ops.IndexSelectOp, e.view(x, (size,)), flat, dim=0), shape(indices))


def put(
    e: Emission, x: SSAValue, indices: SSAValue, source: SSAValue, accumulate: bool = False
) -> SSAValue:
    """Write or add by indices into the flattened tensor."""
    size, count = prod(shape(x)), prod(shape(indices))
    flat = wrap_negative(e, e.view(indices, (count,)), size)
    rows = e.view(source, (count,))
    return e.view(_put(e, e.view(x, (size,)), 0, flat, rows, accumulate, False), shape(x))


def masked_scatter(e: Emission, x: SSAValue, mask: SSAValue, source: SSAValue) -> SSAValue:
    """Write the source's elements, in order, where a mask is true."""
    x, mask = e.expand(x, e.sizes), e.expand(mask, e.sizes)
    flat = e.view(source, (prod(shape(source)),))
    taken = e.emit(ops.IndexSelectOp, flat, _numbers_of_true(e, mask), dim=0)
    return e.emit(WhereOp, mask, e.view(taken, shape(x)), x)


def masked_scatter_backward(e: Emission, grad: SSAValue, mask: SSAValue, sizes: Any) -> SSAValue:
    """Gradient of the source: that of each element where it was written."""
    mask = e.expand(mask, shape(grad))
    grad = e.view(e.emit(WhereOp, mask, grad, e.full(0, dtype(grad))), (prod(shape(grad)),))
    options: dict[str, Plain] = {"input_sizes": (prod(sizes),), "dim": 0}
    indices = _numbers_of_true(e, mask)
    return e.view(e.emit(ops.IndexSelectBackwardOp, grad, indices, **options), tuple(sizes))


def _numbers_of_true(e: Emission, mask: SSAValue) -> SSAValue:
    """Return the number of each true element among those, 0 for others. Shapes: any -> [N]"""
    truths = e.cast(e.view(mask, (prod(shape(mask)),)), "int64")
    counts = scan(e, truths, 0, lambda a, b: e.emit(AddOp, a, b), 0)
    return e.emit(MulOp, truths, e.emit(SubOp, counts, e.full(1, "int64")))


EMITTERS: dict[str, Emitter] = {
    "aten.masked_scatter.default": masked_scatter,
    "aten.masked_scatter_backward.default": masked_scatter_backward,
    "aten.index_add.default": index_add,
    "aten.index_copy.default": index_copy,
    "aten.index_put.default": index_put,
    "aten._unsafe_index_put.default": index_put,
    "aten.index_fill.int_Scalar": index_fill,
    "aten.index_fill.int_Tensor": index_fill,
    "aten.scatter_add.default": scatter_add,
    "aten.scatter.src": scatter,
    "aten.scatter.value": scatter_number,
    "aten.take.default": take,
    "aten.put.default": put,
}
