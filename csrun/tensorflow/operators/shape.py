"""Views, slices, concatenation, repetition and padding."""

from typing import Any

import numpy as np

from csrun import nn
from csrun.nn import Tensor
from csrun.tensorflow.errors import UnsupportedOperator
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value


def reshape(e: GraphEmission, op: Any, x: Value, shape: Value) -> Value:
    return nn.reshape(e.tensor(x), e.integers(shape, "the shape"))


def squeeze(e: GraphEmission, op: Any, x: Value) -> Value:
    value = e.tensor(x)
    rank = len(value.shape)
    axes = {axis % rank for axis in op.get_attr("squeeze_dims")}
    kept = [n for axis, n in enumerate(value.shape) if not (axis in axes if axes else n == 1)]
    return nn.reshape(value, kept)


def expand_dims(e: GraphEmission, op: Any, x: Value, axis: Value) -> Value:
    value, (dim,) = e.tensor(x), e.integers(axis, "the axis")
    dim %= len(value.shape) + 1
    return nn.reshape(value, (*value.shape[:dim], 1, *value.shape[dim:]))


def transpose(e: GraphEmission, op: Any, x: Value, axes: Value) -> Value:
    return nn.transpose(e.tensor(x), e.integers(axes, "the permutation"))


def concat(e: GraphEmission, op: Any, *inputs: Value) -> Value:
    *parts, axis = inputs
    (dim,) = e.integers(axis, "the axis")
    return nn.concatenate([e.tensor(part) for part in parts], dim)


def pack(e: GraphEmission, op: Any, *parts: Value) -> Value:
    return nn.stack([e.tensor(part) for part in parts], op.get_attr("axis"))


def unpack(e: GraphEmission, op: Any, x: Value) -> tuple[Value, ...]:
    value = e.tensor(x)
    axis = op.get_attr("axis") % len(value.shape)
    before = (slice(None),) * axis
    return tuple(value[(*before, n)] for n in range(value.shape[axis]))


def split(e: GraphEmission, op: Any, axis: Value, x: Value) -> tuple[Value, ...]:
    """Return equal parts."""
    value, (dim,) = e.tensor(x), e.integers(axis, "the axis")
    count = len(op.outputs)
    size = value.shape[dim % len(value.shape)] // count
    return _parts(value, dim, [size] * count)


def split_v(e: GraphEmission, op: Any, x: Value, sizes: Value, axis: Value) -> tuple[Value, ...]:
    """Return parts of given sizes, one of which may be -1."""
    value, (dim,) = e.tensor(x), e.integers(axis, "the axis")
    wanted = list(e.integers(sizes, "the sizes"))
    rest = value.shape[dim % len(value.shape)] - sum(n for n in wanted if n >= 0)
    return _parts(value, dim, [rest if n < 0 else n for n in wanted])


def _parts(x: Tensor, axis: int, sizes: list[int]) -> tuple[Value, ...]:
    before, ends = (slice(None),) * (axis % len(x.shape)), np.cumsum(sizes).tolist()
    return tuple(
        x[(*before, slice(end - size, end))] for size, end in zip(sizes, ends, strict=True)
    )


def slice_of(e: GraphEmission, op: Any, x: Value, begin: Value, size: Value) -> Value:
    value = e.tensor(x)
    starts, sizes = e.integers(begin, "the begin"), e.integers(size, "the size")
    keys = [
        slice(start, None if length < 0 else start + length)
        for start, length in zip(starts, sizes, strict=True)
    ]
    return value[tuple(keys)]


def strided_slice(
    e: GraphEmission, op: Any, x: Value, begin: Value, end: Value, strides: Value
) -> Value:
    """Return a slice as in Python; each mask has a bit per key."""
    limits = (e.integers(v, "the slice") for v in (begin, end, strides))
    keys: list[Any] = []
    for place, (start, stop, step) in enumerate(zip(*limits, strict=True)):
        if _has_bit(op, "ellipsis_mask", place):
            keys.append(...)
        elif _has_bit(op, "new_axis_mask", place):
            keys.append(None)
        elif _has_bit(op, "shrink_axis_mask", place):
            keys.append(start)
        else:
            first = None if _has_bit(op, "begin_mask", place) else start
            last = None if _has_bit(op, "end_mask", place) else stop
            keys.append(slice(first, last, step))
            if step < 1:
                raise UnsupportedOperator(
                    f"a slice with step {step}: use a step of 1 or more, and tf.gather to reverse"
                )
    return e.tensor(x)[tuple(keys)]


def _has_bit(op: Any, name: str, place: int) -> bool:
    return bool(op.get_attr(name) >> place & 1)


def broadcast_to(e: GraphEmission, op: Any, x: Value, shape: Value) -> Value:
    return nn.broadcast_to(e.tensor(x), e.integers(shape, "the shape"))


def tile(e: GraphEmission, op: Any, x: Value, multiples: Value) -> Value:
    value = e.tensor(x)
    for axis, count in enumerate(e.integers(multiples, "the multiples")):
        if count == 1:
            continue
        if value.shape[axis] == 1:
            sizes = tuple(count if a == axis else n for a, n in enumerate(value.shape))
            value = nn.broadcast_to(value, sizes)
        else:
            value = nn.concatenate([value] * count, axis)
    return value


def pad(
    e: GraphEmission, op: Any, x: Value, paddings: Value, filling: Value | None = None
) -> Value:
    """Return x with constants before and after the values of each axis."""
    value = e.tensor(x)
    number = 0.0 if filling is None else float(e.constant(filling, "the padding"))
    for axis, (before, after) in enumerate(e.constant(paddings, "the paddings").tolist()):
        value = padded(e, value, axis, before, after, number)
    return value


def padded(
    e: GraphEmission, x: Tensor, axis: int, before: int, after: int, number: float
) -> Tensor:
    """Return x with a number before and after the values of an axis."""
    parts = [_filled(e, x, axis, before, number), x, _filled(e, x, axis, after, number)]
    kept = [part for part in parts if part.shape[axis]]
    return nn.concatenate(kept, axis) if len(kept) > 1 else x


def _filled(e: GraphEmission, like: Tensor, axis: int, size: int, number: float) -> Tensor:
    shape = tuple(size if a == axis else n for a, n in enumerate(like.shape))
    return e.tensor(np.full(shape, number).astype(like.dtype))


def zeros_like(e: GraphEmission, op: Any, x: Value) -> Value:
    value = e.tensor(x)
    return np.zeros(value.shape, value.dtype)


def ones_like(e: GraphEmission, op: Any, x: Value) -> Value:
    value = e.tensor(x)
    return np.ones(value.shape, value.dtype)


EMITTERS: dict[str, Emitter] = {
    "Reshape": reshape,
    "Squeeze": squeeze,
    "ExpandDims": expand_dims,
    "Transpose": transpose,
    "ConcatV2": concat,
    "Pack": pack,
    "Unpack": unpack,
    "Split": split,
    "SplitV": split_v,
    "Slice": slice_of,
    "StridedSlice": strided_slice,
    "BroadcastTo": broadcast_to,
    "Tile": tile,
    "Pad": pad,
    "PadV2": pad,
    "ZerosLike": zeros_like,
    "OnesLike": ones_like,
}
