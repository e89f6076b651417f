"""Axes turned, summed along, and drawn to other sizes: by constant places, or constant matrices."""

from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.ir import SSAValue

from csrun.cirh.ops.arithmetic import MmOp
from csrun.cirh.ops.indexing import IndexSelectBackwardOp, IndexSelectOp
from csrun.cirh.ops.shape import PermuteOp
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

Floats = npt.NDArray[Any]

MOST_SUMMED = 2048  # along an axis: the matrix of a running sum has as many rows and columns


def flip(e: Emission, x: SSAValue, dims: Any) -> SSAValue:
    for dim in (axis(d, x) for d in dims):
        places = np.arange(shape(x)[dim])[::-1].copy()
        x = e.emit(IndexSelectOp, x, e.constant(places), dim=dim)
    return x


def running_sum(e: Emission, x: SSAValue, dim: int, **to: Any) -> SSAValue:
    """A product with ones on and below the diagonal."""
    dim = axis(dim, x) if rank(x) else 0
    size = shape(x)[dim] if rank(x) else 1
    if not floats(x) or to.get("dtype") is not None or size > MOST_SUMMED:
        raise unsupported(
            f"a running sum is of floats, over an axis of at most {MOST_SUMMED}",
            f"{size} of {dtype(x)}",
        )
    return _along(e, x, dim, np.tril(np.ones((size, size)))) if rank(x) else x


def _along(e: Emission, x: SSAValue, dim: int, matrix: Floats) -> SSAValue:
    """Each line of an axis times a matrix [new size, size]."""
    order = [d for d in range(rank(x)) if d != dim] + [dim]
    is_moved = order != list(range(rank(x)))
    x = e.emit(PermuteOp, x, dims=tuple(order)) if is_moved else x
    lines, out = shape(x)[:-1], matrix.shape[0]
    flat = e.view(x, (int(np.prod(lines)), shape(x)[-1]))
    found = e.emit(MmOp, flat, e.constant(np.ascontiguousarray(matrix.T, dtype(x))))
    found = e.view(found, (*lines, out))
    return e.emit(PermuteOp, found, dims=tuple(np.argsort(order).tolist())) if is_moved else found


def nearest_places(size: int, new: int, scale: float | None) -> npt.NDArray[np.int64]:
    """The place that each of the new ones is a copy of.

    Source: PyTorch, aten/src/ATen/native/UpSample.h, nearest_neighbor_compute_source_index
    """
    step = np.float32(1 / scale if scale else size / new)
    places: npt.NDArray[np.int64] = np.floor(np.arange(new, dtype=np.float32) * step).astype(
        np.int64
    )
    places[places >= size] = size - 1
    return places


def nearest(e: Emission, x: SSAValue, sizes: Any, *scales: float | None) -> SSAValue:
    for dim, new, scale in _drawn(sizes, scales):
        places = nearest_places(shape(x)[dim], new, scale)
        x = e.emit(IndexSelectOp, x, e.constant(places), dim=dim)
    return x


def nearest_backward(
    e: Emission, grad: SSAValue, sizes: Any, own: Any, *scales: float | None
) -> SSAValue:
    for dim, new, scale in _drawn(sizes, scales):
        places = e.constant(nearest_places(own[dim], new, scale))
        before = (*shape(grad)[:dim], own[dim], *shape(grad)[dim + 1 :])
        grad = e.emit(IndexSelectBackwardOp, grad, places, input_sizes=before, dim=dim)
    return grad


def linear_weights(size: int, new: int, aligned: bool, scale: float | None) -> Floats:
    """[new, size]: of each new place, the shares of the two that it lies between.

    Source: PyTorch, aten/src/ATen/native/UpSample.h, area_pixel_compute_source_index
    """
    if aligned:
        place = np.arange(new) * ((size - 1) / (new - 1) if new > 1 else 0.0)
    else:
        step = 1 / scale if scale else size / new
        place = np.maximum((np.arange(new) + 0.5) * step - 0.5, 0)
    first = np.minimum(place.astype(np.int64), size - 1)
    share, found = place - first, np.zeros((new, size))
    found[np.arange(new), first] += 1 - share
    found[np.arange(new), np.minimum(first + 1, size - 1)] += share
    return found


def linear(e: Emission, x: SSAValue, sizes: Any, aligned: bool, *scales: float | None) -> SSAValue:
    for dim, new, scale in _drawn(sizes, scales):
        x = _along(e, x, dim, linear_weights(shape(x)[dim], new, aligned, scale))
    return x


def linear_backward(
    e: Emission, grad: SSAValue, sizes: Any, own: Any, aligned: bool, *scales: float | None
) -> SSAValue:
    for dim, new, scale in _drawn(sizes, scales):
        grad = _along(e, grad, dim, linear_weights(own[dim], new, aligned, scale).T)
    return grad


def _drawn(sizes: Any, scales: Any) -> list[tuple[int, int, float | None]]:
    """Of each axis behind samples and channels: its number, its new size, its scale if given."""
    given = scales or (None,) * len(sizes)
    return [(n + 2, new, s) for n, (new, s) in enumerate(zip(sizes, given, strict=True))]


EMITTERS: dict[str, Emitter] = {
    "aten.flip.default": flip,
    "aten.cumsum.default": running_sum,
    "aten.upsample_nearest1d.default": nearest,
    "aten.upsample_nearest2d.default": nearest,
    "aten.upsample_nearest1d_backward.default": nearest_backward,
    "aten.upsample_nearest2d_backward.default": nearest_backward,
    "aten.upsample_linear1d.default": linear,
    "aten.upsample_bilinear2d.default": linear,
    "aten.upsample_linear1d_backward.default": linear_backward,
    "aten.upsample_bilinear2d_backward.default": linear_backward,
}
