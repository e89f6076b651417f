"""Values looked up by their places, and the largest and smallest."""

import math
from collections.abc import Sequence

import numpy as np

from csrun.cirh.ops import indexing, reductions
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.types import is_float, type_of
from csrun.nn.errors import ShapeError, TraceError, located, user_line
from csrun.nn.functions import Axes, argmax, axes_of, with_padding
from csrun.nn.shapes import concatenate, view
from csrun.nn.tensor import Tensor, require_tensor

__all__ = ["amax", "amin", "gather", "index_select", "max", "min", "stack"]


def gather(x: Tensor, indices: Tensor, axis: int = -1) -> Tensor:
    """The values of x along an axis that the indices name, each in its own row.

    Shapes: indices of the axes of x, nowhere longer but along the axis -> theirs
    Raises: ShapeError when shapes or types do not fit
    """
    return _looked_up("gather", indexing.GatherOp, x, indices, axis)


def index_select(x: Tensor, indices: Tensor, axis: int = 0) -> Tensor:
    """The parts of an axis of x that the indices name, one behind the other.

    Shapes: x [..., N, ...], indices [M] -> [..., M, ...]
    Raises: ShapeError when shapes or types do not fit
    """
    return _looked_up("index_select", indexing.IndexSelectOp, x, indices, axis)


def _looked_up(name: str, kind: type[CirhOp], x: Tensor, indices: Tensor, axis: int) -> Tensor:
    require_tensor(name, indices)
    (dim,) = axes_of(name, require_tensor(name, x), axis)
    with located(name):
        return x.tracer.emit(kind, x, indices, dim=dim)


def amax(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The largest over all axes, or along those given; equals share the gradient.

    Raises: ShapeError for an axis that x does not have, or that is of size 0
    """
    return _extremum("amax", reductions.AmaxOp, x, axis, keepdims)


def amin(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The smallest over all axes, or along those given; equals share the gradient.

    Raises: ShapeError for an axis that x does not have, or that is of size 0
    """
    if is_float(type_of(_numbers("amin", x).value)):
        return _extremum("amin", reductions.AminOp, x, axis, keepdims)
    return -1 - _extremum("amin", reductions.AmaxOp, -1 - x, axis, keepdims)


def _extremum(name: str, kind: type[CirhOp], x: Tensor, axis: Axes, keepdims: bool) -> Tensor:
    axes = axes_of(name, _numbers(name, x), axis)
    if not axes:
        return x
    with located(name):
        if x.tracer.dependence(x).axis in axes:
            x = with_padding(x, math.inf if kind is reductions.AminOp else _least(x))
        return x.tracer.emit(kind, x, dims=axes, keepdim=keepdims)


def _least(x: Tensor) -> float:
    return -math.inf if is_float(type_of(x.value)) else float(np.iinfo(x.dtype).min)


def max(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The largest over all axes, of which equals share the gradient; or along an axis, where the
    first of equals has it.

    Raises: ShapeError for an axis that x does not have
    """
    if axis is None:
        return amax(x, None, keepdims)
    return _chosen("max", x, argmax(_numbers("max", x), axis), axis, keepdims)


def min(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The smallest over all axes, of which equals share the gradient; or along an axis, where the
    first of equals has it.

    Raises: ShapeError for an axis that x does not have
    """
    if axis is None:
        return amin(x, None, keepdims)
    falling = -x if is_float(type_of(_numbers("min", x).value)) else -1 - x  # of all integers
    return _chosen("min", x, argmax(falling, axis), axis, keepdims)


def _numbers(name: str, x: Tensor) -> Tensor:
    if require_tensor(name, x).dtype == "bool":
        raise TraceError(f"{user_line()}: {name}: booleans have no order: x.astype('int32') has")
    return x


def _chosen(name: str, x: Tensor, places: Tensor, axis: int, keepdims: bool) -> Tensor:
    (dim,) = axes_of(name, x, axis)
    kept = (*x.shape[:dim], 1, *x.shape[dim + 1 :])
    found = gather(x, view(places, kept), dim)
    return found if keepdims else view(found, places.shape)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """Tensors of one shape, one behind the other along a new axis.

    Raises: ShapeError when their shapes or types differ
    """
    if not tensors:
        raise ShapeError(f"{user_line()}: stack: at least one tensor is needed")
    shapes = {require_tensor("stack", x).shape for x in tensors}
    rank = len(tensors[0].shape) + 1
    if len(shapes) > 1 or not -rank <= axis < rank:
        found = ", ".join(str(list(x.shape)) for x in tensors)
        raise ShapeError(
            f"{user_line()}: stack: tensors of one shape, and one of its places, are needed, "
            f"got {found} and axis {axis}"
        )
    dim = axis % rank
    parts = [view(x, (*x.shape[:dim], 1, *x.shape[dim:])) for x in tensors]
    return concatenate(parts, dim)
