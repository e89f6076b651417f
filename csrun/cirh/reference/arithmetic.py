"""Reference implementations: shapes, elementwise arithmetic, matrix products, reductions."""

from typing import Any

import numpy as np

from csrun.cirh.ops import elementwise, matrix, reduction, shape
from csrun.cirh.ops.base import Properties, integer, ints
from csrun.cirh.reference.table import Reference, References


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
    elementwise.AddOp: plain(np.add),
    elementwise.SubOp: plain(np.subtract),
    elementwise.MulOp: plain(np.multiply),
    elementwise.DivOp: plain(np.divide),
    elementwise.NegOp: plain(np.negative),
    elementwise.ExpOp: plain(np.exp),
    elementwise.LogOp: plain(np.log),
    elementwise.SqrtOp: plain(np.sqrt),
    matrix.MmOp: plain(np.matmul),
    matrix.AddmmOp: plain(lambda bias, a, b: bias + a @ b),
    reduction.SumOp: total,
    reduction.ArgmaxOp: argmax,
}
