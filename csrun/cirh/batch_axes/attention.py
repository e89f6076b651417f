"""Attention, and the positions in it."""

from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    LOST,
    SAME,
    Dependence,
    Rules,
    combine_dependences,
    follow_gradient,
    is_constant_along,
    linear,
)
from csrun.cirh.ops.attention import AttentionBackwardOp, AttentionOp
from csrun.cirh.ops.base import integer
from csrun.cirh.ops.rotary import RotaryEmbeddingOp
from csrun.cirh.types import shape_of, type_of


def attend(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Samples are on the first axis of all operands, including a mask that differs between
    samples.
    """
    is_backward = isinstance(op, AttentionBackwardOp)
    first = 6 if is_backward else 3
    masks = [
        one
        for value, one in zip(op.operands[first:], of[first:], strict=True)
        if one.over is not SAME or not is_constant_along(value, -4)
    ]
    if any(len(shape_of(type_of(value))) < 4 for value in op.operands[first:]) and masks:
        return LOST
    found = combine_dependences([*of[:first], *masks], (), 1)
    return follow_gradient(found, of[0]) if is_backward else found


def rotated(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Per sample, unless its axis is that of positions or the last one."""
    (one,) = of
    last = len(shape_of(type_of(op.operands[0]))) - 1
    if one.axis in (integer(op.properties, "dim"), last):
        return LOST
    return linear(one)


RULES: Rules = {
    AttentionOp: attend,
    AttentionBackwardOp: attend,
    RotaryEmbeddingOp: rotated,
}
