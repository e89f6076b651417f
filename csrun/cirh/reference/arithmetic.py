"""Reference implementations: shapes, elementwise arithmetic, matrix products, reductions.

NumPy arrays in, an array out, nothing reused, no speed.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.cirh.ops import arithmetic, shape
from csrun.cirh.ops.base import CirhOp, Properties, integer, ints

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


REFERENCES: References = {
    shape.ViewOp: view,
    shape.ExpandOp: expand,
    shape.PermuteOp: permute,
    shape.TransposeOp: plain(np.transpose),
    shape.CloneOp: plain(np.copy),
    arithmetic.AddOp: plain(np.add),
    arithmetic.SubOp: plain(np.subtract),
    arithmetic.MulOp: plain(np.multiply),
    arithmetic.DivOp: plain(np.divide),
    arithmetic.NegOp: plain(np.negative),
    arithmetic.ExpOp: plain(np.exp),
    arithmetic.LogOp: plain(np.log),
    arithmetic.SqrtOp: plain(np.sqrt),
    arithmetic.MmOp: plain(np.matmul),
    arithmetic.AddmmOp: plain(lambda bias, a, b: bias + a @ b),
    arithmetic.SumOp: total,
    arithmetic.ArgmaxOp: argmax,
}
