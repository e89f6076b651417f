"""Softmax and the norms."""

from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    LOST,
    Dependence,
    Found,
    Rules,
    by_samples,
    combine_dependences,
    follow_gradient,
    sum_of_samples,
)
from csrun.cirh.batch_axes.elementwise import elementwise
from csrun.cirh.ops import normalization
from csrun.cirh.ops.base import integer
from csrun.cirh.types import shape_of, type_of


def along_an_axis(op: Operation, of: Sequence[Dependence]) -> Dependence:
    """Rule of an operator that is elementwise unless `dim` is the axis of the samples."""
    found = elementwise(op, of)
    return LOST if found.axis == integer(op.properties, "dim") else found


def normalized(op: Operation, of: Sequence[Dependence]) -> Found:
    """Each run of values is normalized independently; the samples are on an earlier axis."""
    x, *weights = of
    axes = len(shape_of(type_of(op.operands[1])))
    return by_samples(x, weights, len(shape_of(type_of(op.operands[0]))) - axes)


def normalized_backward(op: Operation, of: Sequence[Dependence]) -> Found:
    """The operand's gradient is per sample, those of the weights are sums over samples."""
    *samples, weight = of
    axes = len(shape_of(type_of(op.operands[-1])))
    own = combine_dependences(samples, (weight,), len(shape_of(type_of(op.operands[0]))) - axes)
    own = follow_gradient(own, of[0])
    return (own, *(sum_of_samples(own) for _ in op.results[1:]))


RULES: Rules = {
    normalization.SoftmaxOp: along_an_axis,
    normalization.SoftmaxBackwardOp: along_an_axis,
    normalization.NativeLayerNormOp: normalized,
    normalization.NativeLayerNormBackwardOp: normalized_backward,
    normalization.FusedRmsNormOp: normalized,
    normalization.FusedRmsNormBackwardOp: normalized_backward,
}
