"""Lookups by index."""

from math import prod
from typing import Any

from csrun import nn
from csrun.cirh.ops.embedding import NO_PADDING, EmbeddingOp
from csrun.nn import Tensor
from csrun.tensorflow.errors import UnsupportedOperator
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value


def gather(e: GraphEmission, op: Any, x: Value, indices: Value, axis: Value) -> Value:
    """Slices of x at the indices along an axis, within each row of `batch_dims` leading axes."""
    values, index = e.tensor(x), e.tensor(indices)
    (dim,) = e.integers(axis, "the axis")
    dim %= len(values.shape)
    leading = op.get_attr("batch_dims") % (len(index.shape) + 1)
    if leading:
        return _gather_in_rows(values, index, dim, leading)
    if dim == 0 and len(values.shape) == 2:
        return e.emit(EmbeddingOp, values, index, padding_idx=NO_PADDING)
    found = nn.index_select(values, nn.reshape(index, (prod(index.shape),)), dim)
    return nn.reshape(found, (*values.shape[:dim], *index.shape, *values.shape[dim + 1 :]))


def _gather_in_rows(values: Tensor, index: Tensor, dim: int, leading: int) -> Tensor:
    """Shapes: values [R..., N, D...], index [R..., M] -> [R..., M, D...]

    Raises: UnsupportedOperator for another axis, or indices of more than one axis
    """
    if dim != leading or len(index.shape) != leading + 1:
        raise UnsupportedOperator(
            f"batch_dims {leading} with axis {dim} and indices of shape {list(index.shape)}: "
            "gather along the first axis after batch_dims, by indices of one axis more"
        )
    rest = values.shape[dim + 1 :]
    apart = nn.reshape(index, (*index.shape, *(1,) * len(rest)))
    return nn.gather(values, nn.broadcast_to(apart, (*index.shape, *rest)), dim)


def resource_gather(e: GraphEmission, op: Any, table: Value, indices: Value) -> Value:
    """Rows of a variable."""
    values, index = e.tensor(table), e.tensor(indices)
    if len(values.shape) == 2:
        return e.emit(EmbeddingOp, values, index, padding_idx=NO_PADDING)
    found = nn.index_select(values, nn.reshape(index, (prod(index.shape),)), 0)
    return nn.reshape(found, (*index.shape, *values.shape[1:]))


EMITTERS: dict[str, Emitter] = {
    "GatherV2": gather,
    "ResourceGather": resource_gather,
}
