"""Flips, interpolation and adaptive pooling, by constant indices or matrices."""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from xdsl.ir import SSAValue

from csrun.cirh.ops.indexing import IndexSelectBackwardOp, IndexSelectOp
from csrun.cirh.ops.products import MmOp
from csrun.pytorch.operators.base import (
    Emission,
    Emitter,
    axis,
    dtype,
    packed,
    rank,
    shape,
    unsupported,
)

Floats = npt.NDArray[Any]


def flip(e: Emission, x: SSAValue, dims: Any) -> SSAValue:
    for dim in (axis(d, x) for d in dims):
        indices = np.arange(shape(x)[dim])[::-1].copy()
        x = e.emit(IndexSelectOp, x, e.constant(indices), dim=dim)
    return x


def _along(e: Emission, x: SSAValue, dim: int, matrix: Floats) -> SSAValue:
    """Multiply each line of an axis by a matrix [new size, size]."""
    order = [d for d in range(rank(x)) if d != dim] + [dim]
    x = e.permute(x, order)
    lines, out = shape(x)[:-1], matrix.shape[0]
    flat = e.view(x, (int(np.prod(lines)), shape(x)[-1]))
    found = e.emit(MmOp, flat, e.constant(np.ascontiguousarray(matrix.T, dtype(x))))
    return e.permute(e.view(found, (*lines, out)), np.argsort(order).tolist())


def nearest_indices(
    size: int, new: int, scale: float | None, is_exact: bool = False
) -> npt.NDArray[np.int64]:
    """Return the source index of each new element; exact: by the element's centre.

    Source: PyTorch, aten/src/ATen/native/UpSample.h, nearest_neighbor_compute_source_index and
    nearest_neighbor_exact_compute_source_index
    """
    step = np.float32(1 / scale if scale else size / new)
    numbers = np.arange(new, dtype=np.float32) + np.float32(0.5 if is_exact else 0)
    indices: npt.NDArray[np.int64] = np.floor(numbers * step).astype(np.int64)
    indices[indices >= size] = size - 1
    return indices


def nearest(
    is_exact: bool, e: Emission, x: SSAValue, sizes: Any, *scales: float | None
) -> SSAValue:
    for dim, new, scale in _resized_axes(sizes, scales):
        indices = nearest_indices(shape(x)[dim], new, scale, is_exact)
        x = e.emit(IndexSelectOp, x, e.constant(indices), dim=dim)
    return x


def nearest_backward(
    is_exact: bool, e: Emission, grad: SSAValue, sizes: Any, own: Any, *scales: float | None
) -> SSAValue:
    for dim, new, scale in _resized_axes(sizes, scales):
        indices = e.constant(nearest_indices(own[dim], new, scale, is_exact))
        before = (*shape(grad)[:dim], own[dim], *shape(grad)[dim + 1 :])
        grad = e.emit(IndexSelectBackwardOp, grad, indices, input_sizes=before, dim=dim)
    return grad


def linear_weights(size: int, new: int, aligned: bool, scale: float | None) -> Floats:
    """Return the weights [new, size] of linear interpolation.

    Source: PyTorch, aten/src/ATen/native/UpSample.h, area_pixel_compute_source_index
    """
    if aligned:
        position = np.arange(new) * ((size - 1) / (new - 1) if new > 1 else 0.0)
    else:
        step = 1 / scale if scale else size / new
        position = np.maximum((np.arange(new) + 0.5) * step - 0.5, 0)
    first = np.minimum(position.astype(np.int64), size - 1)
    share, found = position - first, np.zeros((new, size))
    found[np.arange(new), first] += 1 - share
    found[np.arange(new), np.minimum(first + 1, size - 1)] += share
    return found


def linear(e: Emission, x: SSAValue, sizes: Any, aligned: bool, *scales: float | None) -> SSAValue:
    for dim, new, scale in _resized_axes(sizes, scales):
        x = _along(e, x, dim, linear_weights(shape(x)[dim], new, aligned, scale))
    return x


def linear_backward(
    e: Emission, grad: SSAValue, sizes: Any, own: Any, aligned: bool, *scales: float | None
) -> SSAValue:
    for dim, new, scale in _resized_axes(sizes, scales):
        grad = _along(e, grad, dim, linear_weights(own[dim], new, aligned, scale).T)
    return grad


def cubic_weights(size: int, new: int, aligned: bool, scale: float | None) -> Floats:
    """Return the weights [new, size] of cubic interpolation.

    Source: Keys 1981, equation 15 with a = -0.75, as PyTorch's
    """
    if aligned:
        position = np.arange(new) * ((size - 1) / (new - 1) if new > 1 else 0.0)
    else:
        position = (np.arange(new) + 0.5) * (1 / scale if scale else size / new) - 0.5
    first = np.floor(position).astype(np.int64)
    share, found = position - first, np.zeros((new, size))
    for at, distance in ((-1, share + 1), (0, share), (1, 1 - share), (2, 2 - share)):
        weights = cubic_kernel(distance, -0.75)
        np.add.at(found, (np.arange(new), np.clip(first + at, 0, size - 1)), weights)
    return found


def cubic(e: Emission, x: SSAValue, sizes: Any, aligned: bool, *scales: float | None) -> SSAValue:
    for dim, new, scale in _resized_axes(sizes, scales):
        x = _along(e, x, dim, cubic_weights(shape(x)[dim], new, aligned, scale))
    return x


def cubic_backward(
    e: Emission, grad: SSAValue, sizes: Any, own: Any, aligned: bool, *scales: float | None
) -> SSAValue:
    for dim, new, scale in _resized_axes(sizes, scales):
        grad = _along(e, grad, dim, cubic_weights(own[dim], new, aligned, scale).T)
    return grad


def antialiased_weights(
    is_cubic: bool, size: int, new: int, aligned: bool, scale: float | None
) -> Floats:
    """Return the weights [new, size] of an interpolation that is as wide as a new pixel.

    Source: PyTorch, aten/src/ATen/native/cpu/UpSampleKernel.cpp,
    _compute_indices_min_size_weights_aa
    """
    if aligned:
        step = (size - 1) / (new - 1) if new > 1 else 0.0
    else:
        step = 1 / scale if scale else size / new
    wide = max(step, 1.0)
    reach = (2 if is_cubic else 1) * wide
    found = np.zeros((new, size))
    for row in range(new):
        centre = step * (row + 0.5)
        first = max(int(centre - reach + 0.5), 0)
        indices = np.arange(first, min(int(centre + reach + 0.5), size))
        distance = np.abs((indices - centre + 0.5) / wide)
        weights = cubic_kernel(distance, -0.5) if is_cubic else np.maximum(1 - distance, 0)
        found[row, indices] = weights / (weights.sum() or 1)
    return found


def cubic_kernel(distance: Floats, a: float) -> Floats:
    """Return the weights of cubic interpolation. Source: Keys 1981, equation 15"""
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = (((distance - 5) * distance + 8) * distance - 4) * a
    return np.where(distance < 1, near, np.where(distance < 2, far, 0))


def antialiased(
    is_cubic: bool, e: Emission, x: SSAValue, sizes: Any, aligned: bool, *scales: float | None
) -> SSAValue:
    for dim, new, scale in _resized_axes(sizes, scales):
        x = _along(e, x, dim, antialiased_weights(is_cubic, shape(x)[dim], new, aligned, scale))
    return x


def antialiased_backward(
    is_cubic: bool,
    e: Emission,
    grad: SSAValue,
    sizes: Any,
    own: Any,
    aligned: bool,
    *scales: float | None,
) -> SSAValue:
    for dim, new, scale in _resized_axes(sizes, scales):
        matrix = antialiased_weights(is_cubic, own[dim], new, aligned, scale)
        grad = _along(e, grad, dim, matrix.T)
    return grad


def adaptive_weights(size: int, count: int) -> Floats:
    """Return the weights [count, size] of means over adaptive windows."""
    first = np.arange(count) * size // count
    last = -(-(np.arange(1, count + 1) * size) // count)
    indices = np.arange(size)
    inside = (indices >= first[:, None]) & (indices < last[:, None])
    return np.asarray(inside / (last - first)[:, None])


def adaptive_means(e: Emission, x: SSAValue, sizes: Any) -> SSAValue:
    """Emit the means of adaptive windows over the last axes."""
    for dim, count in enumerate(sizes, rank(x) - len(sizes)):
        x = _along(e, x, dim, adaptive_weights(shape(x)[dim], count))
    return x


def adaptive_means_backward(axes: int, e: Emission, grad: SSAValue, x: SSAValue) -> SSAValue:
    for dim in range(rank(x) - axes, rank(x)):
        grad = _along(e, grad, dim, adaptive_weights(shape(x)[dim], shape(grad)[dim]).T)
    return grad


def window_weights(
    size: int, count: int, geometry: tuple[int, int, int], counts_padding: bool
) -> Floats:
    """Return the weights [count, size] of means over windows. geometry: window, stride, padding."""
    window, stride, padding = geometry
    first = np.arange(count) * stride - padding
    last = np.minimum(first + window, size + padding)
    indices = np.arange(size)
    inside = (indices >= first[:, None]) & (indices < last[:, None])
    number = last - first if counts_padding else inside.sum(1)
    return np.asarray(inside / number[:, None])


class AvgPoolOptions(NamedTuple):
    """ATen's options of an average pooling; one number is for all axes."""

    kernel_size: Any
    stride: Any = ()
    padding: Any = (0,)
    ceil_mode: bool = False
    count_include_pad: bool = True
    divisor_override: int | None = None


def avg_pool_3d(e: Emission, x: SSAValue, options: AvgPoolOptions) -> SSAValue:
    if options.divisor_override is not None:
        raise unsupported(
            "avg_pool3d divides by the size of its window",
            f"divisor_override={options.divisor_override}",
            "leave it out, and scale the result",
        )
    for dim, count, geometry in zip((-3, -2, -1), e.sizes[-3:], _geometry(options), strict=True):
        matrix = window_weights(shape(x)[dim], count, geometry, options.count_include_pad)
        x = _along(e, x, axis(dim, x), matrix)
    return x


def avg_pool_3d_backward(
    e: Emission, grad: SSAValue, x: SSAValue, options: AvgPoolOptions
) -> SSAValue:
    for dim, geometry in zip((-3, -2, -1), _geometry(options), strict=True):
        size, count = shape(x)[dim], shape(grad)[dim]
        matrix = window_weights(size, count, geometry, options.count_include_pad)
        grad = _along(e, grad, axis(dim, x), matrix.T)
    return grad


def _geometry(options: AvgPoolOptions) -> list[tuple[int, int, int]]:
    """Return window, stride and padding of each of three axes."""
    given = (options.kernel_size, options.stride or options.kernel_size, options.padding)
    each = [list(o) * (3 if len(o) == 1 else 1) for o in given]
    return [(window, stride, padding) for window, stride, padding in zip(*each, strict=True)]


def _resized_axes(sizes: Any, scales: Any) -> list[tuple[int, int, float | None]]:
    """Return number, new size and scale, if given, of each axis after samples and channels."""
    given = scales or (None,) * len(sizes)
    return [(n + 2, new, s) for n, (new, s) in enumerate(zip(sizes, given, strict=True))]


EMITTERS: dict[str, Emitter] = {
    "aten.flip.default": flip,
    **{
        f"aten.{prefix}nearest{suffix}{axes}d{back}.default": partial(emitter, is_exact)
        for prefix, suffix, is_exact in (("upsample_", "", False), ("_upsample_", "_exact", True))
        for axes in (1, 2, 3)
        for back, emitter in (("", nearest), ("_backward", nearest_backward))
    },
    "aten.upsample_linear1d.default": linear,
    "aten.upsample_bilinear2d.default": linear,
    "aten.upsample_trilinear3d.default": linear,
    "aten.upsample_trilinear3d_backward.default": linear_backward,
    "aten.upsample_bicubic2d.default": cubic,
    "aten.upsample_bicubic2d_backward.default": cubic_backward,
    **{
        f"aten._upsample_{kind}2d_aa{back}.default": partial(emitter, is_cubic)
        for kind, is_cubic in (("bilinear", False), ("bicubic", True))
        for back, emitter in (("", antialiased), ("_backward", antialiased_backward))
    },
    "aten._adaptive_avg_pool3d.default": adaptive_means,
    "aten._adaptive_avg_pool3d_backward.default": partial(adaptive_means_backward, 3),
    "aten.avg_pool3d.default": packed(avg_pool_3d),
    "aten.avg_pool3d_backward.default": packed(avg_pool_3d_backward),
    "aten.upsample_linear1d_backward.default": linear_backward,
    "aten.upsample_bilinear2d_backward.default": linear_backward,
}
