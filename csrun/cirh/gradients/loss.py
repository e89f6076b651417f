"""Gradients of the loss functions."""

from csrun.cirh.gradients.table import Backward, Gradients, Rules
from csrun.cirh.ops.base import integer
from csrun.cirh.ops.loss import (
    LogSoftmaxBackwardOp,
    LogSoftmaxOp,
    NllLossBackwardOp,
    NllLossForwardOp,
)


def log_softmax(back: Backward) -> Gradients:
    """g - softmax(x) * sum(g), from the saved result."""
    dim = integer(back.op.properties, "dim")
    return [back.builder.emit(LogSoftmaxBackwardOp, back.grad, back.out, dim=dim)]


def nll_loss(back: Backward) -> Gradients:
    """-g at each row's label; labels have no gradient."""
    ignored = integer(back.op.properties, "ignore_index")
    grad = back.builder.emit(NllLossBackwardOp, back.grad, *back.operands, ignore_index=ignored)
    return [grad, None]


RULES: Rules = {LogSoftmaxOp: log_softmax, NllLossForwardOp: nll_loss}
