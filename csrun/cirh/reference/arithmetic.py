"""Reference implementations: shapes, elementwise arithmetic, matrix products, reductions.

NumPy arrays in, an array out, nothing reused, no speed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import StringAttr

from csrun.cirh.ops import arithmetic, batch, parts, shape
from csrun.cirh.ops.base import CirhOp, Properties, integer, ints, number

Array = npt.NDArray[np.generic]
Reference = Callable[..., Array | tuple[Array, ...]]  # (properties, *operands)
References = Mapping[type[CirhOp], Reference]


def plain(function: Any) -> Reference:
    """A NumPy function that takes no properties."""
    return lambda properties, *operands: np.asarray(function(*operands))


def view(properties: Properties, x: Any) -> Any:
    """Row-major elements under another shape."""
    return x.reshape(ints(properties, "shape"))


def expand(properties: Properties, x: Any) -> Any:
    """Broadcasting."""
    return np.broadcast_to(x, ints(properties, "shape"))


def permute(properties: Properties, x: Any) -> Any:
    """Axes in another order."""
    return x.transpose(ints(properties, "dims"))


def total(properties: Properties, x: Any) -> Any:
    """The sum over `dims`."""
    keep = bool(integer(properties, "keepdim"))
    return np.asarray(x.sum(axis=ints(properties, "dims"), keepdims=keep))


def argmax(properties: Properties, x: Any) -> Any:
    """The first index of the largest value."""
    return np.asarray(x.argmax(axis=integer(properties, "dim")))


def mask_padding(properties: Properties, x: Any, samples: Any) -> Any:
    """x, with the value in the rows behind those of so many samples."""
    out = x.copy()
    behind = int(samples) * integer(properties, "rows")
    np.moveaxis(out, integer(properties, "dim"), 0)[behind:] = number(properties, "value")
    return out


def to_copy(properties: Properties, x: Any) -> Any:
    """The numbers as another type."""
    dtype = properties["dtype"]
    assert isinstance(dtype, StringAttr)
    return x.astype(dtype.data)


def label_count(properties: Properties, labels: Any) -> Any:
    """How many are not to be ignored."""
    count = np.count_nonzero(labels != integer(properties, "ignore_index"))
    dtype = properties["dtype"]
    assert isinstance(dtype, StringAttr)
    return np.asarray(count, dtype.data)


def part(properties: Properties, x: Any) -> Any:
    """Every `step`th element of an axis, from `start` to `end`."""
    return x[_place(properties)]


def selection(properties: Properties, x: Any) -> Any:
    """One place of an axis."""
    return x.take(integer(properties, "index"), axis=integer(properties, "dim"))


def part_backward(properties: Properties, grad: Any) -> Any:
    """The gradient in zeros."""
    out = np.zeros(ints(properties, "input_sizes"), grad.dtype)
    out[_place(properties)] = grad
    return out


def selection_backward(properties: Properties, grad: Any) -> Any:
    """The gradient in zeros."""
    out = np.zeros(ints(properties, "input_sizes"), grad.dtype)
    np.moveaxis(out, integer(properties, "dim"), 0)[integer(properties, "index")] = grad
    return out


def _place(properties: Properties) -> tuple[slice, ...]:
    start, end, step = (integer(properties, name) for name in ("start", "end", "step"))
    return (*[slice(None)] * integer(properties, "dim"), slice(start, end, step))


def cat(properties: Properties, *tensors: Any) -> Any:
    """One behind the other."""
    return np.concatenate(tensors, axis=integer(properties, "dim"))


REFERENCES: References = {
    batch.MaskPaddingOp: mask_padding,
    batch.LabelCountOp: label_count,
    shape.ViewOp: view,
    shape.ExpandOp: expand,
    shape.PermuteOp: permute,
    shape.TransposeOp: plain(np.transpose),
    shape.SliceOp: part,
    shape.SelectOp: selection,
    shape.CloneOp: plain(np.copy),
    parts.SliceBackwardOp: part_backward,
    parts.SelectBackwardOp: selection_backward,
    parts.CatOp: cat,
    arithmetic.AddOp: plain(np.add),
    arithmetic.SubOp: plain(np.subtract),
    arithmetic.MulOp: plain(np.multiply),
    arithmetic.DivOp: plain(np.divide),
    arithmetic.NegOp: plain(np.negative),
    arithmetic.ExpOp: plain(np.exp),
    arithmetic.LogOp: plain(np.log),
    arithmetic.SqrtOp: plain(np.sqrt),
    arithmetic.ToCopyOp: to_copy,
    arithmetic.MmOp: plain(np.matmul),
    arithmetic.MatmulOp: plain(np.matmul),
    arithmetic.AddmmOp: plain(lambda bias, a, b: bias + a @ b),
    arithmetic.SumOp: total,
    arithmetic.ArgmaxOp: argmax,
}
