"""Reversal, rotation, mirrored padding and blocks of images."""

from functools import partial
from typing import Any

import numpy as np

from csrun import nn
from csrun.nn import Tensor
from csrun.tensorflow.errors import UnsupportedOperator
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value


def reverse(e: GraphEmission, op: Any, x: Value, axes: Value) -> Value:
    value = e.tensor(x)
    for axis in e.integers(axes, "the axes"):
        value = _selected(e, value, axis, np.arange(value.shape[axis])[::-1])
    return value


def reverse_sequence(e: GraphEmission, op: Any, x: Value, lengths: Value) -> Value:
    """Return each sample with its first values along an axis reversed, as many as its length."""
    value, along, samples = e.tensor(x), op.get_attr("seq_dim"), op.get_attr("batch_dim")
    sizes = [value.shape[n] if n == samples else 1 for n in range(len(value.shape))]
    count = nn.reshape(e.tensor(lengths).astype("int64"), sizes)
    steps = np.arange(value.shape[along], dtype=np.int64)
    places = nn.reshape(e.tensor(steps), [-1 if n == along else 1 for n in range(len(sizes))])
    found = nn.where(places < count, count - 1 - places, places)
    return nn.gather(value, nn.broadcast_to(found, value.shape), along)


def roll(e: GraphEmission, op: Any, x: Value, shifts: Value, axes: Value) -> Value:
    value = e.tensor(x)
    pairs = zip(e.integers(shifts, "the shift"), e.integers(axes, "the axis"), strict=True)
    for shift, axis in pairs:
        value = _selected(e, value, axis, np.roll(np.arange(value.shape[axis]), shift))
    return value


def mirror_pad(e: GraphEmission, op: Any, x: Value, paddings: Value) -> Value:
    """Return x with its own values, mirrored, before and after each axis."""
    value, mode = e.tensor(x), op.get_attr("mode").decode().lower()
    for axis, widths in enumerate(e.constant(paddings, "the paddings").tolist()):
        if any(widths):
            places = np.pad(np.arange(value.shape[axis]), widths, mode=mode)
            value = _selected(e, value, axis, places)
    return value


def _selected(e: GraphEmission, x: Tensor, axis: int, places: Any) -> Tensor:
    return nn.index_select(x, e.tensor(places.astype(np.int64)), axis % len(x.shape))


def blocks(to_depth: bool, e: GraphEmission, op: Any, x: Value) -> Value:
    """Move blocks of pixels to channels, or channels to blocks of pixels.

    Shapes: [B, H, W, C] -> [B, H / size, W / size, C size size], or back
    """
    if op.get_attr("data_format") != b"NHWC":
        raise UnsupportedOperator("data_format must be NHWC: transpose the images")
    value, size = e.tensor(x), op.get_attr("block_size")
    batch, high, wide, channels = value.shape
    if to_depth:
        high, wide, out = high // size, wide // size, channels * size * size
        split, end = (batch, high, size, wide, size, channels), (batch, high, wide, out)
    else:
        out = channels // (size * size)
        split = (batch, high, wide, size, size, out)
        end = (batch, high * size, wide * size, out)
    return nn.reshape(nn.transpose(nn.reshape(value, split), (0, 1, 3, 2, 4, 5)), end)


EMITTERS: dict[str, Emitter] = {
    "ReverseV2": reverse,
    "ReverseSequence": reverse_sequence,
    "Roll": roll,
    "MirrorPad": mirror_pad,
    "SpaceToDepth": partial(blocks, True),
    "DepthToSpace": partial(blocks, False),
}
