"""Losses by label."""

from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.batch_axes.base import LOST, MIXED, PART, SAME, SAMPLES, Dependence, Rules
from csrun.cirh.batch_axes.normalization import along_an_axis
from csrun.cirh.ops import loss
from csrun.cirh.ops.base import integer


def nll_loss(op: Operation, of: Sequence[Dependence]) -> Dependence:
    x, labels = of
    if x.axis != 0 or x.sample_axis != labels.sample_axis:
        return LOST
    over = PART if x.over is labels.over is SAMPLES else MIXED
    return Dependence(over, counts_padding=not ignores_padding(op, labels))


def nll_loss_backward(op: Operation, of: Sequence[Dependence]) -> Dependence:
    grad, x, labels = of
    if x.axis != 0 or x.sample_axis != labels.sample_axis:
        return LOST
    alone = x.over is labels.over is SAMPLES and grad.over is SAME
    padding = 0 if ignores_padding(op, labels) else None
    return Dependence(SAMPLES if alone else MIXED, padding=padding).at(x.sample_axis)


def ignores_padding(op: Operation, labels: Dependence) -> bool:
    """Return whether the labels in padding rows are ignored."""
    return labels.padding == integer(op.properties, "ignore_index")


RULES: Rules = {
    loss.LogSoftmaxOp: along_an_axis,
    loss.LogSoftmaxBackwardOp: along_an_axis,
    loss.NllLossForwardOp: nll_loss,
    loss.NllLossBackwardOp: nll_loss_backward,
}
