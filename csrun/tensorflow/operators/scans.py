"""Running sums and products, and the product along an axis."""

from typing import Any

import numpy as np

from csrun import nn
from csrun.cirh.types import is_float, type_of
from csrun.nn import Tensor
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value
from csrun.tensorflow.operators.products import multiply_axis


def cumulative_sum(e: GraphEmission, op: Any, x: Value, axis: Value) -> Value:
    """Running sums along an axis: a product with a triangle of ones."""
    value, (dim,) = e.tensor(x), e.integers(axis, "the axis")
    count, kind = value.shape[dim], value.dtype
    ones = np.tri(count, k=-1 if op.get_attr("exclusive") else 0, dtype=np.float32)
    ones = ones.T if op.get_attr("reverse") else ones  # of sums and terms
    rows = value if is_float(type_of(value.value)) else value.as_floats()
    return multiply_axis(e, rows, dim, ones).astype(kind)


def cumulative_product(e: GraphEmission, op: Any, x: Value, axis: Value) -> Value:
    """Running products along an axis, in log2(size) passes.

    Source: Hillis and Steele 1986, Data parallel algorithms
    """
    value, (dim,) = e.tensor(x), e.integers(axis, "the axis")
    dim %= len(value.shape)
    count, is_reverse = value.shape[dim], op.get_attr("reverse")
    if op.get_attr("exclusive"):
        value = _shifted(e, value, dim, 1, is_reverse)
    shift = 1
    while shift < count:
        value = value * _shifted(e, value, dim, shift, is_reverse)
        shift *= 2
    return value


def _shifted(e: GraphEmission, x: Tensor, dim: int, shift: int, is_reverse: bool) -> Tensor:
    """Return x moved to higher indices, or lower ones in reverse, with ones before or after."""
    count = x.shape[dim]
    ones = e.tensor(np.ones((*x.shape[:dim], shift, *x.shape[dim + 1 :]), x.dtype))
    if is_reverse:
        return nn.concatenate([_part(x, dim, shift, count), ones], dim)
    return nn.concatenate([ones, _part(x, dim, 0, count - shift)], dim)


def _part(x: Tensor, dim: int, start: int, end: int) -> Tensor:
    return x[(*(slice(None),) * dim, slice(start, end))]


def product_along(x: Tensor, dim: int) -> Tensor:
    """Return the product along an axis, by halves. Shapes: [..., N, ...] -> [..., 1, ...]"""
    while (size := x.shape[dim]) > 1:
        half = size // 2
        found = _part(x, dim, 0, half) * _part(x, dim, half, 2 * half)
        is_odd = bool(size % 2)
        x = nn.concatenate([found, _part(x, dim, size - 1, size)], dim) if is_odd else found
    return x


EMITTERS: dict[str, Emitter] = {
    "Cumsum": cumulative_sum,
    "Cumprod": cumulative_product,
}
