"""Resized images, by constant indices or matrices."""

from typing import Any

import numpy as np
import numpy.typing as npt

from csrun import nn
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value
from csrun.tensorflow.operators.products import multiply_axis

_AXES = (1, 2)  # rows and columns of images [N, H, W, C]
Floats = npt.NDArray[np.float32]


def bilinear(e: GraphEmission, op: Any, x: Value, size: Value) -> Value:
    """Shapes: x [N, H, W, C], size [2] -> [N, H', W', C]"""
    value = e.tensor(x).as_floats()
    for axis, new in zip(_AXES, e.integers(size, "the size"), strict=True):
        value = multiply_axis(e, value, axis, _weights(op, value.shape[axis], new))
    return value


def nearest(e: GraphEmission, op: Any, x: Value, size: Value) -> Value:
    """Shapes: x [N, H, W, C], size [2] -> [N, H', W', C]"""
    value = e.tensor(x)
    for axis, new in zip(_AXES, e.integers(size, "the size"), strict=True):
        count = value.shape[axis]
        found = _positions(op, count, new)
        found = np.floor(found + 0.5) if op.get_attr("align_corners") else np.floor(found)
        places = np.minimum(found, count - 1).astype(np.int64)
        value = nn.index_select(value, e.tensor(places), axis)
    return value


def _weights(op: Any, size: int, new: int) -> Floats:
    """Return the weights [new, size] of linear interpolation.

    Source: TensorFlow, core/kernels/image/resize_bilinear_op.cc, compute_interpolation_weights
    """
    position = _positions(op, size, new) - _centre(op)
    first, found = np.floor(position), np.zeros((new, size), np.float32)
    share = position - first
    rows = np.arange(new)
    found[rows, np.maximum(first, 0).astype(int)] += 1 - share
    found[rows, np.minimum(np.ceil(position), size - 1).astype(int)] += share
    return found


def _positions(op: Any, size: int, new: int) -> Floats:
    """Return where each new pixel begins or, for half_pixel_centers, has its centre.

    Source: TensorFlow, core/util/image_resizer_state.h
    """
    is_aligned = op.get_attr("align_corners") and new > 1
    scale = np.float32((size - 1) / (new - 1) if is_aligned else size / new)
    return np.asarray((np.arange(new, dtype=np.float32) + _centre(op)) * scale)


def _centre(op: Any) -> np.float32:
    return np.float32(0.5 if op.get_attr("half_pixel_centers") else 0)


EMITTERS: dict[str, Emitter] = {
    "ResizeBilinear": bilinear,
    "ResizeNearestNeighbor": nearest,
}
