"""Views of a tensor, and tensors put together: what changes shapes and no values.

Nothing here but `concatenate` is computed, or takes memory: a part or another order of the axes is
read where it lies.
"""

from collections.abc import Sequence
from math import prod
from types import EllipsisType

from csrun.cirh.ops.parts import CatOp
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
    """The same elements in row-major order under another shape; one size may be -1, for the rest.

    Raises: ShapeError when x has another number of elements
    """
    sizes = tuple(shape)
    if sizes.count(-1) == 1:
        known = prod(n for n in sizes if n != -1)
        rest = prod(x.shape) // known if known else 0
        sizes = tuple(rest if n == -1 else n for n in sizes)
    if any(n < 0 for n in sizes) or prod(sizes) != prod(x.shape):
        raise ShapeError(
            f"{user_line()}: reshape: {list(x.shape)} cannot be viewed as {list(shape)}"
        )
    return view(x, sizes)


def view(x: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """The same elements under another shape; x itself when it has that shape."""
    return x if x.shape == sizes else x.tracer.emit(ViewOp, x, shape=sizes)


def transpose(x: Tensor, axes: Sequence[int] | None = None) -> Tensor:
    """The axes in another order: axis i is axis axes[i] of x; without `axes` the other way round.

    Raises: ShapeError when `axes` does not name each axis once
    """
    rank = len(x.shape)
    given = tuple(range(rank))[::-1] if axes is None else tuple(axes)
    dims = tuple(a + rank if a < 0 else a for a in given)
    if sorted(dims) != list(range(rank)):
        raise ShapeError(
            f"{user_line()}: transpose: axes must name each axis of {list(x.shape)} once, "
            f"got {list(given)}"
        )
    return x.tracer.emit(PermuteOp, x, dims=dims)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Axes of size 1, and missing leading ones, repeated.

    Raises: ShapeError when x does not broadcast to the shape
    """
    with located("broadcast_to"):
        return x.tracer.emit(ExpandOp, x, shape=tuple(shape))


def concatenate(tensors: Sequence[Tensor], axis: int = -1) -> Tensor:
    """Tensors one behind the other along an axis.

    Raises: ShapeError when they differ along another axis, or in type
    """
    if not tensors:
        raise ShapeError(f"{user_line()}: concatenate: at least one tensor is needed")
    first, rank = tensors[0], len(tensors[0].shape)
    with located("concatenate"):
        return first.tracer.emit(CatOp, *tensors, dim=axis + rank if axis < 0 else axis)


def part(x: Tensor, key: Index | tuple[Index, ...]) -> Tensor:
    """x[key], as NumPy has it: whole numbers, slices, `...` and None.

    Raises: TraceError for another index, ShapeError for one outside x
    """
    keys = key if isinstance(key, tuple) else (key,)
    if any(isinstance(k, bool) or not isinstance(k, Index) for k in keys):
        raise TraceError(
            f"{user_line()}: an index must be whole numbers, slices, ... or None, got {key!r}"
        )
    named = sum(k is not None and k is not ... for k in keys)
    if keys.count(...) > 1 or named > len(x.shape):
        raise ShapeError(f"{user_line()}: {key!r} is no index of shape {list(x.shape)}")
    if ... not in keys:
        keys = (*keys, ...)
    dim = 0
    for k in keys:
        if k is ...:
            dim += len(x.shape) - dim - _axes_behind(keys)
        elif k is None:
            x = view(x, (*x.shape[:dim], 1, *x.shape[dim:]))
            dim += 1
        elif isinstance(k, slice):
            x = _slice(x, dim, k)
            dim += 1
        else:
            x = _select(x, dim, k)
    return x


def _axes_behind(keys: tuple[Index, ...]) -> int:
    """Axes of the tensor that the keys behind `...` name."""
    return sum(k is not None for k in keys[keys.index(...) + 1 :])


def _slice(x: Tensor, dim: int, key: slice) -> Tensor:
    start, stop, step = key.indices(x.shape[dim])
    if step < 1:
        raise ShapeError(f"{user_line()}: a slice must go forwards, got a step of {step}")
    if (start, stop, step) == (0, x.shape[dim], 1):
        return x
    end = max(start, stop)
    return x.tracer.emit(SliceOp, x, dim=dim, start=start, end=end, step=step)


def _select(x: Tensor, dim: int, index: int) -> Tensor:
    size = x.shape[dim]
    if not -size <= index < size:
        raise ShapeError(
            f"{user_line()}: index {index} is not on axis {dim} of shape {list(x.shape)}"
        )
    return x.tracer.emit(SelectOp, x, dim=dim, index=index % size)
