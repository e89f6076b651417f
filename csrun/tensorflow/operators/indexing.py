"""Lookups by index, sums by index, the largest values, and numbers of buckets."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from csrun import nn
from csrun.cirh.ops.embedding import NO_PADDING, EmbeddingOp
from csrun.cirh.ops.indexing import IndexSelectBackwardOp
from csrun.cirh.ops.sorting import ArgsortOp
from csrun.nn import Tensor
from csrun.nn.functions import fill_padding
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


def gather_nd(e: GraphEmission, op: Any, x: Value, indices: Value) -> Value:
    """Values of x at coordinates of its first axes.

    Shapes: x [N..., D...], indices [M..., K], of K axes -> [M..., D...]
    """
    values, index = e.tensor(x), e.tensor(indices)
    *places, count = index.shape
    rest = values.shape[count:]
    first = 1 if count > 1 and _are_rows(op, values.shape[0], places) else 0
    sizes = values.shape[first:count]
    flat = _flat_index(index[..., first:], sizes)
    if first:  # each sample has coordinates in its own row
        table = nn.reshape(values, (values.shape[0], prod(sizes), *rest))
        flat = nn.reshape(flat, (places[0], prod(places[1:])))
        return nn.reshape(_gather_in_rows(table, flat, 1, 1), (*places, *rest))
    table = nn.reshape(values, (prod(sizes), *rest))
    found = nn.index_select(table, nn.reshape(flat, (prod(places),)), 0)
    return nn.reshape(found, (*places, *rest))


def _flat_index(index: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return positions in row-major order. Shapes: index [M..., K], sizes [K] -> [M...]"""
    found = index[..., 0]
    for n, size in enumerate(sizes[1:], 1):
        found = found * size + index[..., n]
    return found


def _are_rows(op: Any, rows: int, places: Sequence[int]) -> bool:
    """True for coordinates joined from the numbers of all rows, in order, and others."""
    from csrun.tensorflow.graph_folding import value_of  # imports TensorFlow

    source = op.inputs[1].op
    if source.type not in ("Pack", "ConcatV2") or not places or places[0] != rows:
        return False
    is_concat = source.type == "ConcatV2"
    axis = value_of(source.inputs[-1]) if is_concat else source.get_attr("axis")
    if axis is None or int(axis) not in (-1, len(places)):
        return False
    found = value_of(source.inputs[0])
    if found is None:
        return False
    found = found[..., 0] if is_concat else found
    numbers = np.arange(rows).reshape(-1, *(1,) * (len(places) - 1))
    return list(found.shape) == list(places) and bool((found == numbers).all())


def segment_sums(e: GraphEmission, op: Any, x: Value, segments: Value, count: Value) -> Value:
    """Sums of the values of each segment; those of negative segments are dropped.

    Shapes: x [M..., D...], segments [M...] -> [count, D...]
    """
    values, index = fill_padding(e.tensor(x), 0), e.tensor(segments)
    rest, places = values.shape[len(index.shape) :], prod(index.shape)
    flat = nn.reshape(index, (places,))
    is_dropped = nn.reshape(flat < 0, (places, *(1,) * len(rest)))
    rows = nn.where(is_dropped, 0.0, nn.reshape(values, (places, *rest)))
    sizes = (*e.integers(count, "num_segments"), *rest)
    kept = nn.where(flat < 0, 0, flat)
    return e.emit(IndexSelectBackwardOp, rows, kept, input_sizes=sizes, dim=0)


def top_k(e: GraphEmission, op: Any, x: Value, k: Value) -> tuple[Value, ...]:
    """The largest values along the last axis, and their indices, the first of equal values first.

    Shapes: [..., N] -> [..., k], [..., k]
    """
    value, (count,) = e.tensor(x), e.integers(k, "k")
    order = e.emit(ArgsortOp, value, dim=len(value.shape) - 1, descending=True)[..., :count]
    kind = e.dtype_of(op.outputs[1].dtype.name)
    return nn.gather(value, order, -1), order.astype(kind)


def bucketize(e: GraphEmission, op: Any, x: Value) -> Value:
    """Number of boundaries that each value has reached."""
    value = e.tensor(x).as_floats()
    limits = e.tensor(np.array(op.get_attr("boundaries"), np.float32))
    reached = nn.reshape(value, (*value.shape, 1)) >= limits
    return nn.sum(reached.astype("int32"), -1).astype("int32")


EMITTERS: dict[str, Emitter] = {
    "GatherV2": gather,
    "ResourceGather": resource_gather,
    "GatherNd": gather_nd,
    "ResourceGatherNd": gather_nd,
    "UnsortedSegmentSum": segment_sums,
    "TopKV2": top_k,
    "Bucketize": bucketize,
}
