"""Gather, index_select, stack, and maximum and minimum along axes."""

import math
from collections.abc import Sequence

import numpy as np

from csrun.cirh.ops import indexing, reductions
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.types import is_float, type_of
from csrun.nn.errors import ShapeError, TraceError, located, user_line
from csrun.nn.functions import Axes, argmax, axes_of, fill_padding
from csrun.nn.shapes import concatenate, view
from csrun.nn.tensor import Tensor, require_tensor

__all__ = ["amax", "amin", "gather", "index_select", "max", "min", "stack"]


def gather(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """Values of x at the indices along an axis, row by row, as torch.gather.

    Shapes: indices of the rank of x, no longer than x except along the axis -> shape of the indices
    Raises: ShapeError for mismatched shapes or types
    """
    return _emit_lookup("gather", indexing.GatherOp, x, indices, axis)


def index_select(x: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    """Slices of x at the indices along an axis.

    Shapes: x [..., N, ...], indices [M] -> [..., M, ...]
    Raises: ShapeError for mismatched shapes or types
    """
    return _emit_lookup("index_select", indexing.IndexSelectOp, x, indices, axis)


def _emit_lookup(name: str, kind: type[CirhOp], x: Tensor, indices: Tensor, axis: int) -> Tensor:
    require_tensor(name, indices)
    (dim,) = axes_of(name, require_tensor(name, x), axis)
    with located(name):
        return x.tracer.emit(kind, x, indices, dim=dim)


def amax(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Maximum over all axes or the given ones; equal values share the gradient.

    Raises: ShapeError for an axis out of range or of size 0
    """
    return _extremum("amax", reductions.AmaxOp, x, axis, keepdims)


def amin(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Minimum over all axes or the given ones; equal values share the gradient.

    Raises: ShapeError for an axis out of range or of size 0
    """
    if is_float(type_of(_require_numbers("amin", x).value)):
        return _extremum("amin", reductions.AminOp, x, axis, keepdims)
    return -1 - _extremum("amin", reductions.AmaxOp, -1 - x, axis, keepdims)


def _extremum(name: str, kind: type[CirhOp], x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    axes = axes_of(name, _require_numbers(name, x), axis)
    if not axes:
        return x
    with located(name):
        if x.tracer.dependence(x).axis in axes:
            x = fill_padding(x, math.inf if kind is reductions.AminOp else _smallest(x))
        return x.tracer.emit(kind, x, dims=axes, keepdim=keepdims)


def _smallest(x: Tensor) -> float:
    return -math.inf if is_float(type_of(x.value)) else float(np.iinfo(x.dtype).min)


def max(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Maximum over all axes, or along one axis, where the first of equal values gets the gradient.

    Raises: ShapeError for an axis out of range
    """
    if axis is None:
        return amax(x, None, keepdims)
    return _take_along("max", x, argmax(_require_numbers("max", x), axis), axis, keepdims)


def min(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """Minimum over all axes, or along one axis, where the first of equal values gets the gradient.

    Raises: ShapeError for an axis out of range
    """
    if axis is None:
        return amin(x, None, keepdims)
    negated = -x if is_float(type_of(_require_numbers("min", x).value)) else -1 - x  # -x overflows
    return _take_along("min", x, argmax(negated, axis), axis, keepdims)


def _require_numbers(name: str, x: Tensor) -> Tensor:
    if require_tensor(name, x).dtype == "bool":
        raise TraceError(
            f"{user_line()}: {name}: expected numbers, got bool: use x.astype('int32')"
        )
    return x


def _take_along(name: str, x: Tensor, indices: Tensor, axis: int, keepdims: bool) -> Tensor:
    (dim,) = axes_of(name, x, axis)
    kept = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    found = gather(x, view(indices, kept), dim)
    return found if keepdims else view(found, indices.shape)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Stack tensors of equal shape along a new axis.

    Raises: ShapeError if their shapes or types differ
    """
    if not tensors:
        raise ShapeError(f"{user_line()}: stack: at least one tensor is needed")
    shapes = {require_tensor("stack", x).shape for x in tensors}
    rank = len(tensors[0].shape) + 1
    if len(shapes) > 1 or not -rank <= axis < rank:
        found = ", ".join(str(list(x.shape)) for x in tensors)
        raise ShapeError(
            f"{user_line()}: stack: tensors must have equal shapes and the axis must be in "
            f"-{rank}..{rank - 1}, got {found} and axis {axis}"
        )
    dim = axis % rank
    parts = [view(x, (*x.shape[:dim], 1, *x.shape[dim:])) for x in tensors]
    return concatenate(parts, dim)
