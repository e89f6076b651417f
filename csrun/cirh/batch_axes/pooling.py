"""Pooling: per image."""

from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import (
    Dependence,
    Rules,
    by_samples,
    combine_dependences,
    follow_gradient,
)
from csrun.cirh.ops.pooling import (
    AvgPool2dBackwardOp,
    AvgPool2dOp,
    MaxPool2dBackwardOp,
    MaxPool2dOp,
)


def pool(op: Operation, of: Sequence[Dependence]) -> Dependence:
    return by_samples(of[0], (), 2)


def backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    return follow_gradient(combine_dependences(of, (), 2), of[0])


RULES: Rules = {
    MaxPool2dOp: pool,
    AvgPool2dOp: pool,
    MaxPool2dBackwardOp: backward,
    AvgPool2dBackwardOp: backward,
}
