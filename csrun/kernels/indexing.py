"""Gather and index_select along an axis, and their gradients."""

from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.base.errors import CsrunError

Array = npt.NDArray[Any]


def require_inside(indices: Array, size: int, where: str) -> None:
    """Raises: CsrunError for a computed index outside of 0..size-1"""
    if indices.size and (indices.min() < 0 or indices.max() >= size):
        wrong = indices[(indices < 0) | (indices >= size)].flat[0]
        raise CsrunError(f"{where}: computed index {wrong} is out of range 0..{size - 1}")


Mesh = tuple[Array, ...]


def mesh_of(*shape: int) -> Mesh:
    """Return the index of each value along each axis, broadcast to the shape."""
    return tuple(np.ogrid[tuple(slice(n) for n in shape)])


def gather(x: Array, indices: Array, out: Array, places: Array, mesh: Mesh, dim: int) -> None:
    """Gather [..., K, ...] -> [..., I, ...] along axis `dim`; the indices have been checked.

    Shapes: x dense, indices, out, places int64 of one shape, mesh of that shape
    """
    steps = [step // x.itemsize for step in x.strides]
    np.multiply(indices, steps[dim], out=places, dtype=np.int64)  # int32 would be converted
    for d, (own, step) in enumerate(zip(mesh, steps, strict=True)):
        if d != dim:
            np.add(places, own * step, out=places)
    np.take(x.reshape(-1), places, out=out, mode="clip")


def gather_backward(grad: Array, indices: Array, out: Array, mesh: Mesh, dim: int) -> None:
    """Gather gradient [..., I, ...] -> [..., K, ...]: scatter-add at the indices.

    Shapes: mesh of the indices' shape
    """
    out[...] = 0
    places: Any = (*mesh[:dim], indices, *mesh[dim + 1 :])
    np.add.at(out, places, grad)


def index_select(x: Array, indices: Array, out: Array, dim: int) -> None:
    """Index select [..., K, ...] -> [..., I, ...] of axis `dim`; the indices have been checked."""
    np.take(x, indices, axis=dim, out=out, mode="clip")


def index_select_backward(grad: Array, indices: Array, out: Array, dim: int) -> None:
    """Index select gradient [..., I, ...] -> [..., K, ...]: scatter-add at the indices."""
    out[...] = 0
    places: Any = (*(slice(None),) * dim, indices)
    np.add.at(out, places, grad)
