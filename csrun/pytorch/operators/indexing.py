"""Embeddings, indexing and gather, concatenation and padding."""

from math import prod
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from csrun.cirh.ops import embedding as tables
from csrun.cirh.ops import indexing as ops
from csrun.cirh.ops.arithmetic import AddOp, DivOp, MulOp
from csrun.cirh.ops.comparison import GeOp, LtOp, MaximumOp, WhereOp
from csrun.cirh.ops.concatenation import CatOp
from csrun.cirh.ops.constant_arrays import ConstantOp
from csrun.cirh.ops.model import FullOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import VIEWS, PermuteOp, SliceBackwardOp, SliceOp
from csrun.pytorch.operators.base import (
    Emission,
    Emitter,
    at_least_1d,
    axis,
    dtype,
    rank,
    shape,
    unsupported,
)


def embedding(
    e: Emission,
    weight: SSAValue,
    indices: SSAValue,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> SSAValue:
    """Emit a lookup; consecutive constant indices, such as positions, are a slice of the table."""
    if sparse:
        raise unsupported("the gradient of torch.embedding is dense", "sparse=True", "leave it out")
    run = _consecutive_run(indices)
    if run is not None and padding_idx < 0:
        start, length = run
        rows = e.emit(SliceOp, weight, dim=0, start=start, end=start + length, step=1)
        return e.expand(e.view(rows, _run_shape(indices, weight)), e.sizes)
    return e.emit(tables.EmbeddingOp, weight, indices, padding_idx=padding_idx)


def embedding_backward(
    e: Emission,
    grad: SSAValue,
    indices: SSAValue,
    num_weights: int,
    padding_idx: int,
    scale_grad_by_freq: bool,
) -> SSAValue:
    if scale_grad_by_freq:
        grad = _by_frequency(e, grad, indices, num_weights)
    run = _consecutive_run(indices)
    if run is not None and padding_idx < 0:
        start, length = run
        repeated = tuple(range(rank(grad) - 2))
        if repeated:
            grad = e.emit(SumOp, grad, dims=repeated, keepdim=False)
        sizes = (num_weights, shape(grad)[1])
        place = {"dim": 0, "start": start, "end": start + length, "step": 1}
        return e.emit(SliceBackwardOp, grad, input_sizes=sizes, **place)
    options = {"num_weights": num_weights, "padding_idx": padding_idx}
    return e.emit(tables.EmbeddingDenseBackwardOp, grad, indices, **options)


def _consecutive_run(indices: SSAValue) -> tuple[int, int] | None:
    """Return start and length of indices that are constant and consecutive on the last axis."""
    values = constant_value(indices)
    if values is None or not values.ndim or values.shape[-1] < 2:
        return None
    row = values.reshape(-1, values.shape[-1])
    run = np.arange(row[0, 0], row[0, 0] + row.shape[1])
    return (int(run[0]), len(run)) if (row == run).all() else None


def _run_shape(indices: SSAValue, weight: SSAValue) -> tuple[int, ...]:
    return (*(1 for _ in shape(indices)[:-1]), shape(indices)[-1], shape(weight)[1])


def constant_value(x: SSAValue) -> Any:
    """Return the values of a constant, through views; None of another value."""
    owner: Any = x.owner
    if isinstance(owner, ConstantOp):
        return owner.array()
    if isinstance(owner, FullOp):
        return np.full(shape(x), owner.value.value.data, dtype(x))
    if isinstance(owner, VIEWS):
        below = constant_value(owner.x)
        return None if below is None else owner.compute(below)
    return None


def _by_frequency(e: Emission, grad: SSAValue, indices: SSAValue, rows: int) -> SSAValue:
    """Divide the gradient of each lookup by the number of lookups of its row."""
    flat = e.view(indices, (prod(shape(indices)),))
    ones = e.full(1, dtype(grad), shape(flat))
    counts = e.emit(ops.IndexSelectBackwardOp, ones, flat, input_sizes=(rows,), dim=0)
    each = e.view(e.emit(ops.IndexSelectOp, counts, flat, dim=0), (*shape(indices), 1))
    return e.emit(DivOp, grad, each)


def cat(e: Emission, tensors: Any, dim: int = 0) -> SSAValue:
    """Concatenate; empty 1-D tensors are skipped, as in PyTorch."""
    given = [e.cast(x, e.dtype) for x in tensors if shape(x) != (0,)]
    if len(given) == 1:
        return given[0]
    return e.emit(CatOp, *given, dim=axis(dim, given[0]))


def pad(e: Emission, x: SSAValue, sizes: Any, value: float = 0) -> SSAValue:
    """Pad or, where negative, crop. sizes: pairs (before, after), from the last axis on."""
    for number in range(len(sizes) // 2):
        dim = rank(x) - 1 - number
        before, after = sizes[2 * number : 2 * number + 2]
        own = shape(x)[dim]
        place = {"dim": dim, "start": max(-before, 0), "end": own - max(-after, 0), "step": 1}
        x = e.emit(SliceOp, x, **place) if min(before, after) < 0 else x
        around = [_filler(e, x, dim, max(n, 0), value) for n in (before, after)]
        parts = [part for part in (around[0], x, around[1]) if part is not None]
        x = e.emit(CatOp, *parts, dim=dim) if len(parts) > 1 else x
    return x


def _filler(e: Emission, x: SSAValue, dim: int, size: int, value: float) -> SSAValue | None:
    sizes = (*shape(x)[:dim], size, *shape(x)[dim + 1 :])
    return e.full(value, dtype(x), sizes) if size else None


def stack(e: Emission, tensors: Any, dim: int = 0) -> SSAValue:
    dim = dim % (rank(tensors[0]) + 1)
    parts = [e.view(x, (*shape(x)[:dim], 1, *shape(x)[dim:])) for x in tensors]
    return parts[0] if len(parts) == 1 else e.emit(CatOp, *parts, dim=dim)


def repeat(e: Emission, x: SSAValue, times: Any) -> SSAValue:
    own = (1,) * (len(times) - rank(x)) + shape(x)
    split = e.view(x, tuple(n for size in own for n in (1, size)))
    pairs = tuple(n for t, size in zip(times, own, strict=True) for n in (t, size))
    return e.view(e.expand(split, pairs), e.sizes)


def index_select(e: Emission, x: SSAValue, dim: int, indices: SSAValue) -> SSAValue:
    return e.emit(ops.IndexSelectOp, x, indices, dim=axis(dim, x))


def index(e: Emission, x: SSAValue, indices: Any) -> SSAValue:
    """Index by integer tensors, each along an axis."""
    given = [(d, one) for d, one in enumerate(indices) if one is not None]
    if len(given) > 1 and all(dtype(one) != "bool" for _, one in given):
        return _index_by_several(e, x, dict(given))
    dim, given_index = _single_index(e, x, indices)
    flat = e.view(given_index, (prod(shape(given_index)),))
    return e.view(e.emit(ops.IndexSelectOp, x, flat, dim=dim), e.sizes)


def _single_index(e: Emission, x: SSAValue, indices: Any) -> tuple[int, SSAValue]:
    """Return the single indexed axis and its indices; negative ones are wrapped."""
    given = [(d, x) for d, x in enumerate(indices) if x is not None]
    if len(given) != 1 or dtype(given[0][1]) == "bool":
        kinds = ", ".join(dtype(x) for _, x in given)
        raise unsupported(
            "an index must be one integer tensor, not a mask",
            f"{len(given)} of {kinds}",
            "use torch.where",
        )
    dim, given_index = given[0]
    return dim, wrap_negative(e, given_index, shape(x)[dim])


def _index_by_several(e: Emission, x: SSAValue, given: dict[int, SSAValue]) -> SSAValue:
    """Index by several tensors: their axes become one, indexed by flat numbers."""
    dims, sizes, each = [*given], shape(x), [*given.values()]
    if dims == [0, 1] and _is_each_row(each[0], each[1], sizes[0]):
        flat = e.view(each[1], (prod(shape(each[1])),))
        return e.view(e.emit(ops.IndexSelectOp, x, flat, dim=1), e.sizes)
    wide = np.broadcast_shapes(*map(shape, each))
    indices = flatten_indices(e, [e.expand(one, wide) for one in each], [sizes[d] for d in dims])
    others = [d for d in range(rank(x)) if d not in given]
    order = (*dims, *others)
    x = e.permute(x, order)
    left = tuple(sizes[d] for d in others)
    flat = e.view(x, (prod(sizes[d] for d in dims), *left))
    found = e.view(e.emit(ops.IndexSelectOp, flat, indices, dim=0), (*wide, *left))
    first = dims[0] if dims == [*range(dims[0], dims[-1] + 1)] else 0
    if not first:
        return found
    after = range(len(wide) + first, rank(found))
    moved = (*range(len(wide), len(wide) + first), *range(len(wide)), *after)
    return e.emit(PermuteOp, found, dims=moved)


def _is_each_row(rows: SSAValue, columns: SSAValue, count: int) -> bool:
    """True for `x[arange(len(x))[:, None], columns]` with the same columns in each row."""
    values, picked = constant_value(rows), constant_value(columns)
    if values is None or picked is None or picked.min(initial=0) < 0 or not values.ndim:
        return False
    is_run = np.array_equal(values.reshape(-1), np.arange(count)) and values.shape[0] == count
    return is_run and (picked.ndim < values.ndim or picked.shape[0] == 1 < picked.ndim)


def flatten_indices(e: Emission, each: list[SSAValue], sizes: list[int]) -> SSAValue:
    """Return indices of several axes as flat ones; out of range where one of them is."""
    constants = [constant_value(one) for one in each]
    if all(one is not None for one in constants):
        wrapped = [np.where(c < 0, c + n, c) for c, n in zip(constants, sizes, strict=True)]
        return e.constant(np.ravel_multi_index(wrapped, sizes).reshape(-1))
    found, is_wrong = None, None
    for one, size in zip(each, sizes, strict=True):
        place = e.cast(wrap_negative(e, one, size), "int64")
        bad = [
            e.emit(LtOp, place, e.full(0, "int64")),
            e.emit(GeOp, place, e.full(size, "int64")),
        ]
        for one_bad in (e.cast(b, "int32") for b in bad):
            is_wrong = one_bad if is_wrong is None else e.emit(MaximumOp, is_wrong, one_bad)
        scaled = place if found is None else e.emit(MulOp, found, e.full(size, "int64"))
        found = scaled if found is None else e.emit(AddOp, scaled, place)
    assert found is not None, "there is an index"
    assert is_wrong is not None, "there is an index"
    beyond = e.full(prod(sizes), "int64")
    found = e.emit(WhereOp, e.cast(is_wrong, "bool"), beyond, found)
    return e.view(found, (prod(shape(found)),))


def wrap_negative(e: Emission, indices: SSAValue, size: int) -> SSAValue:
    """Wrap negative indices."""
    values = constant_value(indices)
    if values is not None:
        is_below = values.min(initial=0) < 0
        return e.constant(np.where(values < 0, values + size, values)) if is_below else indices
    below = e.emit(LtOp, indices, e.full(0, dtype(indices)))
    return e.emit(WhereOp, below, e.emit(AddOp, indices, e.full(size, dtype(indices))), indices)


def gather(
    e: Emission, x: SSAValue, dim: int, indices: SSAValue, sparse_grad: bool = False
) -> SSAValue:
    if 0 in shape(indices):  # of any rank
        return e.full(0, dtype(x), shape(indices))
    return e.emit(ops.GatherOp, x, indices, dim=axis(dim, x))


def triangle(upper: bool, e: Emission, x: SSAValue, diagonal: int = 0) -> SSAValue:
    """Emit the upper or lower triangle of matrices."""
    ones = np.ones(shape(x)[-2:], bool)
    mask = e.constant(np.triu(ones, diagonal) if upper else np.tril(ones, diagonal))
    return e.emit(WhereOp, mask, x, e.full(0, dtype(x)))


EMITTERS: dict[str, Emitter] = {
    "aten.embedding.default": embedding,
    "aten.embedding_dense_backward.default": embedding_backward,
    "aten.cat.default": cat,
    "aten.constant_pad_nd.default": pad,
    "aten.stack.default": stack,
    "aten.repeat.default": repeat,
    "aten.index_select.default": at_least_1d(index_select),
    "aten.index.Tensor": index,
    "aten.gather.default": at_least_1d(gather),
    "aten.tril.default": lambda e, x, diagonal=0: triangle(False, e, x, diagonal),
    "aten.triu.default": lambda e, x, diagonal=0: triangle(True, e, x, diagonal),
}
