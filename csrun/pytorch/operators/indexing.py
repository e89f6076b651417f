"""Rows of tables, values by their places, tensors put together."""

from math import prod
from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from csrun.cirh.ops import embedding as tables
from csrun.cirh.ops import indexing as ops
from csrun.cirh.ops.comparison import WhereOp
from csrun.cirh.ops.model import ConstantOp
from csrun.cirh.ops.parts import CatOp
from csrun.cirh.ops.reductions import SumOp
from csrun.cirh.ops.shape import VIEWS, SliceBackwardOp, SliceOp
from csrun.pytorch.operators.base import Emission, Emitter, axis, dtype, rank, shape, unsupported


def embedding(
    e: Emission,
    weight: SSAValue,
    indices: SSAValue,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    sparse: bool = False,
) -> SSAValue:
    """Rows that are known to follow one another, as positions do, are a slice of the table."""
    _require_plain(scale_grad_by_freq, sparse)
    run = _run(indices)
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
    _require_plain(scale_grad_by_freq, False)
    run = _run(indices)
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


def _run(indices: SSAValue) -> tuple[int, int] | None:
    """Start and length, where indices are constant, and along the last axis one after another."""
    values = known(indices)
    if values is None or not values.ndim or values.shape[-1] < 2:
        return None
    row = values.reshape(-1, values.shape[-1])
    run = np.arange(row[0, 0], row[0, 0] + row.shape[1])
    return (int(run[0]), len(run)) if (row == run).all() else None


def _run_shape(indices: SSAValue, weight: SSAValue) -> tuple[int, ...]:
    return (*(1 for _ in shape(indices)[:-1]), shape(indices)[-1], shape(weight)[1])


def known(x: SSAValue) -> Any:
    """The values of a constant, under whatever view; None of what is not one."""
    owner: Any = x.owner
    if isinstance(owner, ConstantOp):
        return owner.array()
    if isinstance(owner, VIEWS):
        below = known(owner.x)
        return None if below is None else owner.compute(below)
    return None


def _require_plain(by_frequency: bool, sparse: bool) -> None:
    if by_frequency or sparse:
        raise unsupported(
            "the gradient of a table is dense and of sums",
            f"scale_grad_by_freq={by_frequency} and sparse={sparse}",
        )


def cat(e: Emission, tensors: Any, dim: int = 0) -> SSAValue:
    """Without those of no element, which PyTorch leaves out, too."""
    given = [e.cast(x, e.dtype) for x in tensors if shape(x) != (0,)]
    if len(given) == 1:
        return given[0]
    return e.emit(CatOp, *given, dim=axis(dim, given[0]))


def pad(e: Emission, x: SSAValue, sizes: Any, value: float = 0) -> SSAValue:
    """Pairs of the axes from the last one on: what is put before and behind, or cut off."""
    for number in range(len(sizes) // 2):
        dim = rank(x) - 1 - number
        before, behind = sizes[2 * number : 2 * number + 2]
        own = shape(x)[dim]
        place = {"dim": dim, "start": max(-before, 0), "end": own - max(-behind, 0), "step": 1}
        x = e.emit(SliceOp, x, **place) if min(before, behind) < 0 else x
        around = [_beside(e, x, dim, max(n, 0), value) for n in (before, behind)]
        parts = [part for part in (around[0], x, around[1]) if part is not None]
        x = e.emit(CatOp, *parts, dim=dim) if len(parts) > 1 else x
    return x


def _beside(e: Emission, x: SSAValue, dim: int, size: int, value: float) -> SSAValue | None:
    sizes = (*shape(x)[:dim], size, *shape(x)[dim + 1 :])
    return e.full(value, dtype(x), sizes) if size else None


def stack(e: Emission, tensors: Any, dim: int = 0) -> SSAValue:
    dim = dim % (rank(tensors[0]) + 1)
    parts = [e.view(x, (*shape(x)[:dim], 1, *shape(x)[dim:])) for x in tensors]
    return parts[0] if len(parts) == 1 else e.emit(CatOp, *parts, dim=dim)


def repeat(e: Emission, x: SSAValue, times: Any) -> SSAValue:
    own = (1,) * (len(times) - rank(x)) + shape(x)
    apart = e.view(x, tuple(n for size in own for n in (1, size)))
    pairs = tuple(n for t, size in zip(times, own, strict=True) for n in (t, size))
    return e.view(e.expand(apart, pairs), e.sizes)


def index_select(e: Emission, x: SSAValue, dim: int, indices: SSAValue) -> SSAValue:
    return e.emit(ops.IndexSelectOp, x, indices, dim=axis(dim, x))


def index(e: Emission, x: SSAValue, indices: Any) -> SSAValue:
    """By one tensor of places, along one axis."""
    dim, places = _only(e, x, indices)
    flat = e.view(places, (prod(shape(places)),))
    return e.view(e.emit(ops.IndexSelectOp, x, flat, dim=dim), e.sizes)


def _only(e: Emission, x: SSAValue, indices: Any) -> tuple[int, SSAValue]:
    """The axis, and the places along it; constant ones below zero count from the end."""
    given = [(d, x) for d, x in enumerate(indices) if x is not None]
    if len(given) != 1 or dtype(given[0][1]) == "bool":
        kinds = ", ".join(dtype(x) for _, x in given)
        raise unsupported(
            "a tensor is indexed by one tensor of places at a time: use torch.gather, or "
            "torch.where for a mask",
            f"{len(given)} of {kinds}",
        )
    dim, places = given[0]
    values = known(places)
    if values is not None and values.min(initial=0) < 0:
        places = e.constant(np.where(values < 0, values + shape(x)[dim], values))
    return dim, places


def gather(
    e: Emission, x: SSAValue, dim: int, indices: SSAValue, sparse_grad: bool = False
) -> SSAValue:
    return e.emit(ops.GatherOp, x, indices, dim=axis(dim, x))


def triangle(upper: bool, e: Emission, x: SSAValue, diagonal: int = 0) -> SSAValue:
    """The part of matrices above or below a diagonal, zero beside it."""
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
    "aten.index_select.default": index_select,
    "aten.index.Tensor": index,
    "aten.gather.default": gather,
    "aten.tril.default": lambda e, x, diagonal=0: triangle(False, e, x, diagonal),
    "aten.triu.default": lambda e, x, diagonal=0: triangle(True, e, x, diagonal),
}
