"""Views, indexing and concatenation.

All but `concatenate` are views: they neither compute nor copy.
"""

from collections.abc import Sequence
from math import prod
from types import EllipsisType

from csrun.cirh.ops.concatenation import CatOp
from csrun.cirh.ops.shape import ExpandOp, PermuteOp, SelectOp, SliceOp, ViewOp
from csrun.nn.errors import ShapeError, TraceError, located, user_line
from csrun.nn.tensor import Tensor

__all__ = [
    "broadcast_to",
    "concatenate",
    "reshape",
    "transpose",
]

Index = int | slice | EllipsisType | None


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """View of x in row-major order with another shape, of which one size may be -1.

    Raises: ShapeError if the number of elements differs
    """
    sizes = tuple(shape)
    if sizes.count(-1) == 1:
        known = prod(n for n in sizes if n != -1)
        rest = prod(x.shape) // known if known else 0
        sizes = tuple(rest if n == -1 else n for n in sizes)
    if any(n < 0 for n in sizes) or prod(sizes) != prod(x.shape):
        raise ShapeError(
            f"{user_line()}: reshape: shape {list(x.shape)} cannot be viewed as {list(shape)}"
        )
    return view(x, sizes)


def view(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """View of x with another shape; x itself if it has that shape."""
    return x if x.shape == sizes else x.tracer.emit(ViewOp, x, shape=sizes)


def transpose(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """View of x with its axes permuted: axis i is axis axes[i] of x; reversed by default.

    Raises: ShapeError unless `axes` is a permutation
    """
    rank = len(x.shape)
    given = tuple(range(rank))[::-1] if axes is None else tuple(axes)
    dims = tuple(a + rank if a < 0 else a for a in given)
    if sorted(dims) != list(range(rank)):
        raise ShapeError(
            f"{user_line()}: transpose: axes must be a permutation of the {rank} axes of shape "
            f"{list(x.shape)}, got {list(given)}"
        )
    return x.tracer.emit(PermuteOp, x, dims=dims)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """View of x broadcast to a shape.

    Raises: ShapeError if x does not broadcast to it
    """
    with located("broadcast_to"):
        return x.tracer.emit(ExpandOp, x, shape=tuple(shape))


def concatenate(tensors: Sequence[Tensor], axis: int = -1) -> Tensor:
    """Concatenate tensors along an axis.

    Raises: ShapeError if they differ along another axis, or in type
    """
    if not tensors:
        raise ShapeError(f"{user_line()}: concatenate: at least one tensor is needed")
    first, rank = tensors[0], len(tensors[0].shape)
    with located("concatenate"):
        return first.tracer.emit(CatOp, *tensors, dim=axis + rank if axis < 0 else axis)


def index(x: Tensor, key: Index | tuple[Index, ...]) -> Tensor:
    """x[key] as in NumPy, for integers, slices, `...` and None.

    Raises: TraceError for another kind of index, ShapeError for one out of range
    """
    keys = key if isinstance(key, tuple) else (key,)
    if any(isinstance(k, bool) or not isinstance(k, Index) for k in keys):
        raise TraceError(
            f"{user_line()}: an index must consist of integers, slices, ... and None, got {key!r}"
        )
    named = sum(k is not None and k is not ... for k in keys)
    if keys.count(...) > 1 or named > len(x.shape):
        raise ShapeError(f"{user_line()}: index {key!r} does not match shape {list(x.shape)}")
    if ... not in keys:
        keys = (*keys, ...)
    dim = 0
    for k in keys:
        if k is ...:
            dim += len(x.shape) - dim - _axes_after_ellipsis(keys)
        elif k is None:
            x = view(x, (*x.shape[:dim], 1, *x.shape[dim:]))
            dim += 1
        elif isinstance(k, slice):
            x = _slice(x, dim, k)
            dim += 1
        else:
            x = _select(x, dim, k)
    return x


def _axes_after_ellipsis(keys: tuple[Index, ...]) -> int:
    """Number of axes indexed after `...`."""
    return sum(k is not None for k in keys[keys.index(...) + 1 :])


def _slice(x: Tensor, dim: int, key: slice) -> Tensor:
    start, stop, step = key.indices(x.shape[dim])
    if step < 1:
        raise ShapeError(f"{user_line()}: a slice must have a positive step, got {step}")
    if (start, stop, step) == (0, x.shape[dim], 1):
        return x
    end = max(start, stop)
    return x.tracer.emit(SliceOp, x, dim=dim, start=start, end=end, step=step)


def _select(x: Tensor, dim: int, index: int) -> Tensor:
    size = x.shape[dim]
    if not -size <= index < size:
        raise ShapeError(
            f"{user_line()}: index {index} is out of range for axis {dim} of shape {list(x.shape)}"
        )
    return x.tracer.emit(SelectOp, x, dim=dim, index=index % size)
