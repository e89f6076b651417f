"""Reductions, softmax, matrix products and argmax.

Operators such as + are methods of the tensor; elementwise functions and activations are in their
own modules.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from csrun.cirh.ops import loss, normalization, padding, products, reductions
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.types import is_float, tensor_type, type_of
from csrun.nn.errors import ShapeError, located, user_line
from csrun.nn.shapes import view
from csrun.nn.tensor import Tensor, require_tensor

__all__ = [
    "argmax",
    "flatten",
    "log_softmax",
    "matmul",
    "mean",
    "sample_count",
    "softmax",
    "sum",
]

Axes = int | Sequence[int] | None


def sum(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Sum over all axes or the given ones, without padding samples; integers sum to int64.

    Raises: ShapeError for an axis out of range, or given twice
    """
    if not is_float(type_of(require_tensor("sum", x).value)):
        x = x.astype("int64")
    return _emit_sum("sum", x, axes_of("sum", x, axis), keepdims)


def mean(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Mean over all axes or the given ones; over the batch axis, of the whole global batch.

    Raises: ShapeError for an axis out of range or given twice, or samples without elements
    """
    x = require_tensor("mean", x).as_floats()
    axes = axes_of("mean", x, axis)
    total, dependence = _emit_sum("mean", x, axes, keepdims), x.tracer.dependence(x)
    if dependence.axis not in axes:
        return total / float(prod(x.shape[a] for a in axes))
    others = prod(x.shape[a] for a in axes if a != dependence.axis)
    if not others:
        raise ShapeError(f"{user_line()}: mean: shape {list(x.shape)} has no elements")
    return total / (sample_count(x) * float(others * dependence.sample_axis.count))


def sample_count(x: Tensor) -> Tensor:
    """Number of samples in the global batch, without padding, as a scalar of the dtype of x."""
    kind = tensor_type((), x.dtype)
    return Tensor(x.tracer, x.tracer.builder.leaf(padding.SampleCountOp, kind))


def _emit_sum(name: str, x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    if not axes:
        return x
    with located(name):
        if x.tracer.dependence(x).axis in axes:
            x = fill_padding(x, 0)
        return x.tracer.emit(reductions.SumOp, x, dims=axes, keepdim=keepdims)


def axes_of(name: str, x: Tensor, axis: Axes) -> tuple[int, ...]:
    """Return axes as sorted indices >= 0; all of them for None."""
    if axis is None:
        return tuple(range(len(x.shape)))
    given = tuple(axis) if isinstance(axis, tuple | list | range) else (axis,)
    rank = len(x.shape)
    fit = all(isinstance(a, int | np.integer) and -rank <= a < rank for a in given)
    axes = tuple(sorted(int(a) % rank for a in given)) if fit else ()
    if not axes or len(set(axes)) < len(axes):
        raise ShapeError(f"{user_line()}: {name}: axis {axis} does not fit shape {list(x.shape)}")
    return axes


def flatten(x: Tensor) -> Tensor:
    """x with all axes but the batch merged into one.

    Shapes: [B, ...] -> [B, N]
    """
    require_tensor("flatten", x)
    with located("flatten"):
        return view(x, (x.shape[0], prod(x.shape[1:])))


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along an axis.

    Raises: ShapeError for an axis out of range
    """
    return _emit_along("softmax", normalization.SoftmaxOp, x, axis)


def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """x - log(sum(exp(x))) along an axis.

    Raises: ShapeError for an axis out of range
    """
    return _emit_along("log_softmax", loss.LogSoftmaxOp, x, axis)


def _emit_along(name: str, kind: type[CirhOp], x: Tensor, axis: int) -> Tensor:
    """Emit an operator over one axis, with the axes before and after it merged."""
    x = require_tensor(name, x).as_floats()
    (dim,), sizes = axes_of(name, x, axis), x.shape
    before, after = prod(sizes[:dim]), prod(sizes[dim + 1 :])
    shape = (before, sizes[dim]) if after == 1 else (before, sizes[dim], after)
    return view(x.tracer.emit(kind, view(x, shape), dim=1), sizes)


def fill_padding(x: Tensor, value: float) -> Tensor:
    """Fill the padding rows of an incomplete batch; x itself if it has no batch axis."""
    tracer, dependence = x.tracer, x.tracer.dependence(x)
    if dependence.axis is None:
        return x
    if dependence.outer > 1:  # [T B] as [T, B]
        split = dependence.sample_axis.split_sizes(x.shape)
        return view(fill_padding(view(x, split), value), x.shape)
    place = {"dim": dependence.axis, "rows": dependence.rows}
    return tracer.emit(
        padding.MaskPaddingOp, x, tracer.valid_samples(), value=float(value), **place
    )


def matmul(x: Tensor, y: Tensor) -> Tensor:
    """Matrix product x @ y with broadcast leading axes, as numpy.matmul.

    Shapes: [..., M, K], [..., K, N] -> [..., M, N]; a vector x [K] drops M, a vector y [K] drops N
    Raises: ShapeError for mismatched shapes or types
    """
    with located("matmul"):
        if not x.shape or not y.shape:
            raise ShapeError(
                f"{user_line()}: matmul: expected tensors with at least one axis; multiply by a "
                "scalar with *"
            )
        rows, columns = x.shape[-2:-1], y.shape[-1:] if len(y.shape) > 1 else ()
        x = x if rows else view(x, (1, *x.shape))
        y = y if len(y.shape) > 1 else view(y, (*y.shape, 1))
        if len(y.shape) > 2:
            out = x.tracer.emit(products.MatmulOp, x, y)
            return view(out, (*out.shape[:-2], *rows, *columns))
        matrix = view(x, (prod(x.shape[:-1]), x.shape[-1]))
        out = x.tracer.emit(products.MmOp, matrix, y)
        return view(out, (*x.shape[:-2], *rows, *columns))


def argmax(x: Tensor, axis: int = -1) -> Tensor:
    """Index of the largest value along an axis; of equal values, the first.

    Shapes: [..., C, ...] -> [..., ...], int64
    """
    require_tensor("argmax", x)
    if not -len(x.shape) <= axis < len(x.shape):
        raise ShapeError(
            f"{user_line()}: argmax: axis {axis} is out of range for shape {list(x.shape)}"
        )
    return x.tracer.emit(reductions.ArgmaxOp, x, dim=axis % len(x.shape))
