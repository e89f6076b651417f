"""Reads and writes at constant indices: diagonals, windows, slices."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import SSAValue

from csrun.cirh.ops.comparison import WhereOp
from csrun.cirh.ops.indexing import IndexSelectBackwardOp, IndexSelectOp
from csrun.pytorch.operators.base import Emission, Emitter, axis, dtype, rank, shape

Indices = npt.NDArray[np.int64]


def read_at(e: Emission, x: SSAValue, dim: int, indices: Any) -> SSAValue:
    """Emit the elements at constant indices of an axis."""
    return e.emit(IndexSelectOp, x, e.constant(np.asarray(indices, np.int64).reshape(-1)), dim=dim)


def add_at(e: Emission, source: SSAValue, dim: int, indices: Any, sizes: Sequence[int]) -> SSAValue:
    """Emit zeros with the source added at indices of an axis: the gradient of `read_at`."""
    found = e.constant(np.asarray(indices, np.int64).reshape(-1))
    return e.emit(IndexSelectBackwardOp, source, found, input_sizes=tuple(sizes), dim=dim)


def write_at(e: Emission, x: SSAValue, dim: int, indices: Any, source: SSAValue) -> SSAValue:
    """Emit x with the source at distinct indices of an axis."""
    sizes = shape(x)
    mask = np.zeros(sizes[dim], bool)
    mask[np.asarray(indices, np.int64)] = True
    along = mask.reshape([-1 if d == dim else 1 for d in range(len(sizes))])
    found = add_at(e, e.cast(source, dtype(x)), dim, indices, sizes)
    return e.emit(WhereOp, e.expand(e.constant(along), sizes), found, x)


def slice_scatter(
    e: Emission,
    x: SSAValue,
    source: SSAValue,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> SSAValue:
    """Emit x with the source in a slice of an axis.

    Shapes: x [..., N, ...], source [..., n, ...] for n elements of the slice -> x
    """
    dim = axis(dim, x)
    indices = np.arange(shape(x)[dim])[slice(start, end, step)]
    if not len(indices):
        return x
    if len(indices) == shape(x)[dim]:
        return e.cast(e.expand(source, shape(x)), dtype(x))
    sizes = (*shape(x)[:dim], len(indices), *shape(x)[dim + 1 :])
    return write_at(e, x, dim, indices, e.expand(source, sizes))


def select_scatter(e: Emission, x: SSAValue, source: SSAValue, dim: int, index: int) -> SSAValue:
    """Emit x with the source at one index of an axis.

    Shapes: x [..., N, ...], source without this axis -> x
    """
    dim = axis(dim, x)
    sizes = (*shape(x)[:dim], 1, *shape(x)[dim + 1 :])
    return write_at(e, x, dim, [index % shape(x)[dim]], e.view(source, sizes))


def as_strided(
    e: Emission, x: SSAValue, sizes: Any, strides: Any, offset: int | None = None
) -> SSAValue:
    """as_strided of a contiguous tensor, as the recorder checks."""
    indices = _strided_indices(sizes, strides, offset)
    return e.view(read_at(e, e.view(x, (prod(shape(x)),)), 0, indices), tuple(sizes))


def as_strided_scatter(
    e: Emission, x: SSAValue, source: SSAValue, sizes: Any, strides: Any, offset: int | None = None
) -> SSAValue:
    """Emit a contiguous x with the source at the elements of a strided view.

    Shapes: x any, source `sizes` -> x
    """
    flat, indices = e.view(x, (prod(shape(x)),)), _strided_indices(sizes, strides, offset)
    found = write_at(e, flat, 0, indices.reshape(-1), e.view(source, (indices.size,)))
    return e.view(found, shape(x))


def _strided_indices(sizes: Any, strides: Any, offset: int | None) -> Indices:
    indices = np.full(tuple(sizes), offset or 0, np.int64)
    for dim, stride in enumerate(strides):
        along = [-1 if d == dim else 1 for d in range(len(sizes))]
        indices += (np.arange(sizes[dim]) * stride).reshape(along)
    return indices


def _diagonal_indices(rows: int, columns: int, offset: int) -> Indices:
    indices = np.arange(rows * columns).reshape(rows, columns)
    return np.diagonal(indices, offset).copy()


def diagonal(e: Emission, x: SSAValue, offset: int = 0, dim1: int = 0, dim2: int = 1) -> SSAValue:
    """Emit the diagonal of two axes, as a new last axis.

    Shapes: x [..., M, N] for dim1, dim2 = -2, -1 -> [..., length of the diagonal]
    """
    flat, (rows, columns), _ = _merge_axes(e, x, dim1, dim2)
    return e.view(
        read_at(e, flat, rank(flat) - 1, _diagonal_indices(rows, columns, offset)), e.sizes
    )


def diagonal_backward(
    e: Emission, grad: SSAValue, sizes: Any, offset: int, dim1: int, dim2: int
) -> SSAValue:
    """Emit zeros of the input's sizes with the gradient on the diagonal.

    Shapes: grad [..., length of the diagonal] -> `sizes`
    """
    order = _axes_last(len(sizes), dim1, dim2)
    others = tuple(sizes[d] for d in order[:-2])
    rows, columns = sizes[order[-2]], sizes[order[-1]]
    indices = _diagonal_indices(rows, columns, offset)
    found = add_at(e, grad, len(others), indices, (*others, rows * columns))
    return _split_axes(e, found, tuple(sizes), order)


def diagonal_scatter(
    e: Emission, x: SSAValue, source: SSAValue, offset: int = 0, dim1: int = 0, dim2: int = 1
) -> SSAValue:
    """Emit x with the source on the diagonal of two axes.

    Shapes: x [..., M, N] for dim1, dim2 = -2, -1, source [..., length of the diagonal] -> x
    """
    flat, (rows, columns), order = _merge_axes(e, x, dim1, dim2)
    indices = _diagonal_indices(rows, columns, offset)
    return _split_axes(e, write_at(e, flat, rank(flat) - 1, indices, source), shape(x), order)


def diag_embed(e: Emission, x: SSAValue, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Any:
    """Emit zeros with x on a diagonal."""
    return diagonal_backward(e, x, e.sizes, offset, dim1, dim2)


def _axes_last(axes: int, dim1: int, dim2: int) -> list[int]:
    first, second = dim1 % axes, dim2 % axes
    return [d for d in range(axes) if d not in (first, second)] + [first, second]


def _merge_axes(
    e: Emission, x: SSAValue, dim1: int, dim2: int
) -> tuple[SSAValue, tuple[int, int], list[int]]:
    """Merge two axes into a last one; return it, their sizes, and the axes' order."""
    order = _axes_last(rank(x), dim1, dim2)
    moved = e.permute(x, order)
    *others, rows, columns = shape(moved)
    return e.view(moved, (*others, rows * columns)), (rows, columns), order


def _split_axes(e: Emission, flat: SSAValue, sizes: tuple[int, ...], order: list[int]) -> SSAValue:
    split = e.view(flat, tuple(sizes[d] for d in order))
    return e.permute(split, np.argsort(order).tolist())


def unfold(e: Emission, x: SSAValue, dim: int, size: int, step: int) -> SSAValue:
    """Emit windows along an axis, as a new last axis."""
    if not rank(x):
        return e.view(x, (size,))
    dim = axis(dim, x)
    windows = _windows(shape(x)[dim], size, step)
    found = read_at(e, x, dim, windows)
    split = e.view(found, (*shape(x)[:dim], *windows.shape, *shape(x)[dim + 1 :]))
    order = [d for d in range(rank(x) + 1) if d != dim + 1] + [dim + 1]
    return e.permute(split, order)


def unfold_backward(
    e: Emission, grad: SSAValue, sizes: Any, dim: int, size: int, step: int
) -> SSAValue:
    """Emit the sums of the gradients of each element's windows.

    Shapes: grad [..., windows, ..., size] -> `sizes`, [..., N, ...]
    """
    if not len(sizes):
        return e.view(grad, ())
    dim = dim % len(sizes)
    windows = _windows(sizes[dim], size, step)
    order = list(range(rank(grad) - 1))
    order.insert(dim + 1, rank(grad) - 1)
    flat = e.view(e.permute(grad, order), (*sizes[:dim], windows.size, *sizes[dim + 1 :]))
    return add_at(e, flat, dim, windows, sizes)


def _windows(length: int, size: int, step: int) -> Indices:
    """Shapes: [windows, size]"""
    return np.arange(0, length - size + 1, step)[:, None] + np.arange(size)


EMITTERS: dict[str, Emitter] = {
    "aten.slice_scatter.default": slice_scatter,
    "aten.select_scatter.default": select_scatter,
    "aten.as_strided.default": as_strided,
    "aten.as_strided_scatter.default": as_strided_scatter,
    "aten.diagonal.default": diagonal,
    "aten.diagonal_backward.default": diagonal_backward,
    "aten.diagonal_scatter.default": diagonal_scatter,
    "aten.diag_embed.default": diag_embed,
    "aten.unfold.default": unfold,
    "aten.unfold_backward.default": unfold_backward,
}
