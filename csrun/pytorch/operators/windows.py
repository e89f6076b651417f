"""Reflection and replication padding, im2col, and max pooling by constant indices."""

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import SSAValue

from csrun.cirh.ops.indexing import GatherBackwardOp, GatherOp
from csrun.cirh.ops.reductions import ArgmaxOp
from csrun.pytorch.operators.base import Emission, Emitter, rank, shape
from csrun.pytorch.operators.constant_indices import add_at, read_at
from csrun.pytorch.operators.indexing import pad

Indices = npt.NDArray[np.int64]


def _padded_indices(size: int, before: int, after: int, mode: str) -> Indices:
    """Return the source index of each element of a padded axis."""
    found: Indices = np.pad(np.arange(size), (max(before, 0), max(after, 0)), mode=mode)  # type: ignore[call-overload]
    return found[max(-before, 0) : len(found) - max(-after, 0)]


def _pairs(sizes: Any, axes: int) -> list[tuple[int, int, int]]:
    """Return axis, padding before and after; ATen lists the last axis first."""
    pairs = zip(sizes[::2], sizes[1::2], strict=True)
    return [(axes - 1 - n, before, after) for n, (before, after) in enumerate(pairs)]


def pad_by_copies(mode: str, e: Emission, x: SSAValue, sizes: Any) -> SSAValue:
    for dim, before, after in _pairs(sizes, rank(x)):
        x = read_at(e, x, dim, _padded_indices(shape(x)[dim], before, after, mode))
    return x


def pad_by_copies_backward(
    mode: str, e: Emission, grad: SSAValue, x: SSAValue, sizes: Any
) -> SSAValue:
    for dim, before, after in _pairs(sizes, rank(x)):
        size = shape(x)[dim]
        own = (*shape(grad)[:dim], size, *shape(grad)[dim + 1 :])
        grad = add_at(e, grad, dim, _padded_indices(size, before, after, mode), own)
    return grad


def _blocks(size: int, window: int, dilation: int, stride: int) -> Indices:
    """Shapes: [window, number of windows]"""
    first = np.arange(0, size - dilation * (window - 1), stride)
    return np.arange(window)[:, None] * dilation + first


def _flat_blocks(sizes: Sequence[int], kernel: Any, dilation: Any, stride: Any) -> Indices:
    """Shapes: [rows and columns of a window, windows]"""
    rows, columns = (_blocks(*each) for each in zip(sizes, kernel, dilation, stride, strict=True))
    found = rows[:, None, :, None] * sizes[1] + columns[None, :, None, :]
    return found.reshape(prod(kernel), -1)


def im2col(
    e: Emission, x: SSAValue, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> SSAValue:
    """Windows as columns. Shapes: [N, C, H, W] -> [N, C rows columns, windows]"""
    up, left = padding
    x = pad(e, x, (left, left, up, up))
    *outer, height, width = shape(x)
    flat = e.view(x, (*outer, height * width))
    return e.view(
        read_at(e, flat, len(outer), _flat_blocks((height, width), kernel, dilation, stride)),
        e.sizes,
    )


def col2im(
    e: Emission, x: SSAValue, sizes: Any, kernel: Any, dilation: Any, padding: Any, stride: Any
) -> SSAValue:
    """Sum of windows at their positions: the gradient of im2col."""
    up, left = padding
    padded = (sizes[0] + 2 * up, sizes[1] + 2 * left)
    indices = _flat_blocks(padded, kernel, dilation, stride)
    outer = e.sizes[:-2]
    flat = e.view(x, (*outer, indices.size))
    found = add_at(e, flat, len(outer), indices, (*outer, prod(padded)))
    return pad(e, e.view(found, (*outer, *padded)), (-left, -left, -up, -up))


def _adaptive_windows(size: int, count: int) -> Indices:
    """Return the indices of adaptive windows, padded to the longest with their first index.

    Shapes: [count, longest]
    """
    first = np.arange(count) * size // count
    last = -(-(np.arange(1, count + 1) * size) // count)
    indices = first[:, None] + np.arange((last - first).max(initial=1))
    found: Indices = np.where(indices < last[:, None], indices, first[:, None])
    return found


def _pooled_windows(
    size: int, count: int, window: int, stride: int, padding: int, dilation: int
) -> Indices:
    """Return the indices of pooling windows, with their first valid index for padding."""
    indices = np.arange(count)[:, None] * stride - padding + np.arange(window) * dilation
    inside = (indices >= 0) & (indices < size)
    first = np.take_along_axis(indices, inside.argmax(1)[:, None], 1)
    found: Indices = np.where(inside, indices, first)
    return found


def _flat_windows(windows: Sequence[Indices], sizes: Sequence[int]) -> Indices:
    """Return windows of several axes as flat indices. Shapes: [windows, elements]"""
    found = np.zeros((1, 1), np.int64)
    for own, size in zip(windows, sizes, strict=True):
        split = found[:, None, :, None] * size + own[None, :, None, :]
        found = split.reshape(len(found) * len(own), -1)
    return found


def _max_pool(e: Emission, x: SSAValue, windows: Sequence[Indices]) -> tuple[SSAValue, SSAValue]:
    """Emit the maximum of each window, and its index in the image."""
    inner = shape(x)[rank(x) - len(windows) :]
    outer = shape(x)[: rank(x) - len(windows)]
    indices = _flat_windows(windows, inner)
    flat = e.view(x, (prod(outer), prod(inner)))
    seen = e.view(read_at(e, flat, 1, indices), (prod(outer), *indices.shape))
    which = e.view(e.emit(ArgmaxOp, seen, dim=2), (prod(outer), len(indices), 1))
    found = e.emit(GatherOp, seen, which, dim=2)
    table = e.expand(e.constant(indices[None]), (prod(outer), *indices.shape))
    at = e.emit(GatherOp, table, which, dim=2)
    return e.view(found, e.sizes), e.view(at, e.sizes)


def adaptive_max_pool(e: Emission, x: SSAValue, sizes: Any) -> tuple[SSAValue, SSAValue]:
    inner = shape(x)[rank(x) - len(sizes) :]
    windows = [_adaptive_windows(size, count) for size, count in zip(inner, sizes, strict=True)]
    return _max_pool(e, x, windows)


def max_pool_3d(
    e: Emission,
    x: SSAValue,
    kernel_size: Any,
    stride: Any = (),
    padding: Any = (0,),
    dilation: Any = (1,),
    ceil_mode: bool = False,
) -> tuple[SSAValue, SSAValue]:
    inner, counts = shape(x)[-3:], e.sizes[-3:]
    options = (kernel_size, stride or kernel_size, padding, dilation)
    each = [list(o) * (3 if len(o) == 1 else 1) for o in options]
    windows = [_pooled_windows(*one) for one in zip(inner, counts, *each, strict=True)]
    return _max_pool(e, x, windows)


def largest_backward(
    e: Emission, grad: SSAValue, x: SSAValue, indices: SSAValue, axes: int
) -> SSAValue:
    """Scatter gradients to the indices of maxima."""
    outer, inner = shape(x)[: rank(x) - axes], shape(x)[rank(x) - axes :]
    rows = (prod(outer), prod(shape(grad)[rank(x) - axes :]))
    sizes = (prod(outer), prod(inner))
    flat, at = e.view(grad, rows), e.view(indices, rows)
    return e.view(e.emit(GatherBackwardOp, flat, at, input_sizes=sizes, dim=1), shape(x))


def adaptive_max_pool_backward(
    axes: int, e: Emission, grad: SSAValue, x: SSAValue, indices: SSAValue
) -> SSAValue:
    return largest_backward(e, grad, x, indices, axes)


def max_pool_3d_backward(e: Emission, grad: SSAValue, x: SSAValue, *options: Any) -> SSAValue:
    return largest_backward(e, grad, x, options[-1], 3)


EMITTERS: dict[str, Emitter] = {
    **{
        f"aten.{name}_pad{axes}d{suffix}.default": partial(emitter, mode)
        for name, mode in (("reflection", "reflect"), ("replication", "edge"))
        for axes in (1, 2, 3)
        for suffix, emitter in (("", pad_by_copies), ("_backward", pad_by_copies_backward))
    },
    "aten.im2col.default": im2col,
    "aten.col2im.default": col2im,
    "aten.adaptive_max_pool2d.default": adaptive_max_pool,
    "aten.adaptive_max_pool3d.default": adaptive_max_pool,
    "aten.adaptive_max_pool2d_backward.default": partial(adaptive_max_pool_backward, 2),
    "aten.adaptive_max_pool3d_backward.default": partial(adaptive_max_pool_backward, 3),
    "aten.max_pool3d_with_indices.default": max_pool_3d,
    "aten.max_pool3d_with_indices_backward.default": max_pool_3d_backward,
}
