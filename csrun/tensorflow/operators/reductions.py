"""Reductions. A mean over the batch is over its valid rows."""

from collections.abc import Callable
from functools import partial
from typing import Any

from csrun import nn
from csrun.cirh.types import is_float, type_of
from csrun.nn import Tensor
from csrun.nn.functions import fill_padding
from csrun.tensorflow.errors import UnsupportedOperator
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value
from csrun.tensorflow.operators.scans import product_along


def _reduction(
    function: Callable[..., Tensor], e: GraphEmission, op: Any, x: Value, axes: Value
) -> Value:
    value = e.tensor(x)
    rank = len(value.shape)
    dims = sorted({n % rank for n in e.integers(axes, "the axes")}) if rank else []
    if not dims:
        return value
    return function(value, axis=dims, keepdims=op.get_attr("keep_dims"))


def total(x: Tensor, axis: list[int], keepdims: bool) -> Tensor:
    """Integers keep their type, as in TensorFlow."""
    return nn.sum(x, axis, keepdims).astype(x.dtype)


def product(x: Tensor, axis: list[int], keepdims: bool) -> Tensor:
    """Product along axes; padding samples have no effect."""
    if x.tracer.dependence(x).axis in axis:
        x = fill_padding(x, 1)
    for dim in axis:
        x = product_along(x, dim)
    kept = [n for dim, n in enumerate(x.shape) if keepdims or dim not in axis]
    return nn.reshape(x, kept)


def argmin(e: GraphEmission, op: Any, x: Value, axis: Value) -> Value:
    value = e.tensor(x)
    return argmax(e, op, -value if is_float(type_of(value.value)) else -1 - value, axis)


def argmax(e: GraphEmission, op: Any, x: Value, axis: Value) -> Value:
    (dim,) = e.integers(axis, "the axis")
    return nn.argmax(e.tensor(x), dim).astype(e.dtype_of(op.get_attr("output_type").name))


def every(e: GraphEmission, op: Any, x: Value, axes: Value) -> Value:
    """Return whether all are true."""
    ones = e.tensor(x).astype("int32")
    found = _reduction(nn.amin, e, op, ones, axes)
    return e.tensor(found) == 1


def some(e: GraphEmission, op: Any, x: Value, axes: Value) -> Value:
    """Return whether any is true."""
    ones = e.tensor(x).astype("int32")
    found = _reduction(nn.amax, e, op, ones, axes)
    return e.tensor(found) == 1


def l2_loss(e: GraphEmission, op: Any, x: Value) -> Value:
    value = e.tensor(x)
    return nn.sum(value * value) * 0.5


def mean(e: GraphEmission, op: Any, x: Value, axes: Value) -> Value:
    if e.tensor(x).dtype not in ("float32", "float64"):
        raise UnsupportedOperator("a mean of integers is rounded: cast them to float32")
    return _reduction(nn.mean, e, op, x, axes)


EMITTERS: dict[str, Emitter] = {
    "Mean": mean,
    "Sum": partial(_reduction, total),
    "Max": partial(_reduction, nn.amax),
    "Min": partial(_reduction, nn.amin),
    "All": every,
    "Any": some,
    "Prod": partial(_reduction, product),
    "ArgMax": argmax,
    "ArgMin": argmin,
    "L2Loss": l2_loss,
}
