"""View operators: all or some elements in another shape."""

from typing import Any

from xdsl.ir import SSAValue

from csrun.cirh.ops.shape import (
    PermuteOp,
    SelectBackwardOp,
    SelectOp,
    SliceBackwardOp,
    SliceOp,
    TransposeOp,
)
from csrun.pytorch.operators.base import Emission, Emitter, axis, rank, shape


def view(e: Emission, x: SSAValue, sizes: Any) -> SSAValue:
    """Reshape; one size may be -1."""
    known = [n for n in sizes if n != -1]
    total, product = 1, 1
    for n in shape(x):
        total *= n
    for n in known:
        product *= n
    return e.view(x, tuple(total // max(product, 1) if n == -1 else n for n in sizes))


def t(e: Emission, x: SSAValue) -> SSAValue:
    return e.emit(TransposeOp, x) if rank(x) == 2 else x


def transpose(e: Emission, x: SSAValue, first: int, second: int) -> SSAValue:
    dims = list(range(rank(x)))
    a, b = axis(first, x), axis(second, x)
    if rank(x) == 2 and a != b:
        return t(e, x)
    if a == b:
        return x
    dims[a], dims[b] = b, a
    return e.emit(PermuteOp, x, dims=tuple(dims))


def permute(e: Emission, x: SSAValue, dims: Any) -> SSAValue:
    found = tuple(axis(d, x) for d in dims)
    if found == (1, 0):
        return t(e, x)
    return e.emit(PermuteOp, x, dims=found)


def expand(e: Emission, x: SSAValue, sizes: Any, implicit: bool = False) -> SSAValue:
    """Expand; -1 keeps an axis's size."""
    own = (1,) * (len(sizes) - rank(x)) + shape(x)
    return e.expand(x, tuple(n if s == -1 else s for s, n in zip(sizes, own, strict=True)))


def _limits(start: int | None, end: int | None, size: int) -> tuple[int, int]:
    """Return PyTorch's bounds, which may be negative or beyond the axis, within it."""
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)


def slice_(
    e: Emission,
    x: SSAValue,
    dim: int = 0,
    start: int | None = None,
    end: int | None = None,
    step: int = 1,
) -> SSAValue:
    dim = axis(dim, x)
    first, last = _limits(start, end, shape(x)[dim])
    if (first, last, step) == (0, shape(x)[dim], 1):
        return x
    return e.emit(SliceOp, x, dim=dim, start=first, end=last, step=step)


def slice_backward(
    e: Emission, grad: SSAValue, sizes: Any, dim: int, start: int, end: int, step: int
) -> SSAValue:
    dim = dim % len(sizes)
    first, last = _limits(start, end, sizes[dim])
    place = {"dim": dim, "start": first, "end": last, "step": step}
    return e.emit(SliceBackwardOp, grad, input_sizes=tuple(sizes), **place)


def select(e: Emission, x: SSAValue, dim: int, index: int) -> SSAValue:
    dim = axis(dim, x)
    return e.emit(SelectOp, x, dim=dim, index=index % shape(x)[dim])


def select_backward(e: Emission, grad: SSAValue, sizes: Any, dim: int, index: int) -> SSAValue:
    dim = dim % len(sizes)
    place = {"dim": dim, "index": index % sizes[dim]}
    return e.emit(SelectBackwardOp, grad, input_sizes=tuple(sizes), **place)


def unsqueeze(e: Emission, x: SSAValue, dim: int) -> SSAValue:
    dim = dim % (rank(x) + 1)
    return e.view(x, (*shape(x)[:dim], 1, *shape(x)[dim:]))


def squeeze(e: Emission, x: SSAValue, dims: Any = None) -> SSAValue:
    """Remove axes of size 1, all of them where none is named."""
    given = range(rank(x)) if dims is None else dims if isinstance(dims, list) else [dims]
    gone = {axis(d, x) for d in given}
    return e.view(x, tuple(n for d, n in enumerate(shape(x)) if n != 1 or d not in gone))


def clone(e: Emission, x: SSAValue, memory_format: Any = None) -> SSAValue:
    """Return x: values are immutable."""
    return x


def split(e: Emission, x: SSAValue, sizes: Any, dim: int = 0) -> tuple[SSAValue, ...]:
    """Split into parts of these sizes, or of one size with a smaller last one."""
    dim, found, start = axis(dim, x), [], 0
    size = shape(x)[dim]
    if isinstance(sizes, int):
        sizes = [min(sizes, size - at) for at in range(0, size, sizes)]
    for part in sizes:
        found.append(slice_(e, x, dim, start, start + part))
        start += part
    return tuple(found)


def unbind(e: Emission, x: SSAValue, dim: int = 0) -> tuple[SSAValue, ...]:
    return tuple(select(e, x, dim, index) for index in range(shape(x)[axis(dim, x)]))


EMITTERS: dict[str, Emitter] = {
    "aten.view.default": view,
    "aten._unsafe_view.default": view,
    "aten.reshape.default": view,
    "aten.t.default": t,
    "aten.transpose.int": transpose,
    "aten.permute.default": permute,
    "aten.expand.default": expand,
    "aten.slice.Tensor": slice_,
    "aten.slice_backward.default": slice_backward,
    "aten.select.int": select,
    "aten.select_backward.default": select_backward,
    "aten.unsqueeze.default": unsqueeze,
    "aten.squeeze.default": squeeze,
    "aten.squeeze.dim": squeeze,
    "aten.squeeze.dims": squeeze,
    "aten.clone.default": clone,
    "aten.contiguous.default": clone,
    "aten.split.Tensor": split,
    "aten.unsafe_split.Tensor": split,
    "aten.split_with_sizes.default": split,
    "aten.unsafe_split_with_sizes.default": split,
    "aten.unbind.int": unbind,
}
