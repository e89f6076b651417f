"""Reference implementations: activations and losses, forward and backward."""

from typing import Any

import numpy as np

from csrun.cirh.ops import activation, loss
from csrun.cirh.ops.base import Properties, integer, number
from csrun.cirh.reference.arithmetic import plain
from csrun.cirh.reference.table import References


def threshold_backward(properties: Properties, grad: Any, saved: Any) -> Any:
    """The gradient where `saved` is above the threshold."""
    return np.where(saved > number(properties, "threshold"), grad, 0).astype(grad.dtype)


def log_softmax(properties: Properties, x: Any) -> Any:
    """x - log(sum(exp(x))), shifted by the maximum against overflow."""
    dim = integer(properties, "dim")
    shifted = x - x.max(axis=dim, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=dim, keepdims=True))


def log_softmax_backward(properties: Properties, grad: Any, out: Any) -> Any:
    """grad - softmax * sum(grad)."""
    return grad - np.exp(out) * grad.sum(axis=integer(properties, "dim"), keepdims=True)


def nll_loss(properties: Properties, x: Any, labels: Any) -> Any:
    """Shapes: x [B, C], labels [B] -> scalar sum"""
    (rows,) = np.nonzero(labels != integer(properties, "ignore_index"))
    return np.asarray(-x[rows, labels[rows]].sum())


def nll_loss_backward(properties: Properties, grad: Any, x: Any, labels: Any) -> Any:
    """Shapes: grad scalar, x [B, C], labels [B] -> [B, C]"""
    (rows,) = np.nonzero(labels != integer(properties, "ignore_index"))
    out = np.zeros_like(x)
    out[rows, labels[rows]] = -grad
    return out


REFERENCES: References = {
    activation.ReluOp: plain(lambda x: np.maximum(x, x.dtype.type(0))),
    activation.ThresholdBackwardOp: threshold_backward,
    activation.SigmoidOp: plain(lambda x: 1 / (1 + np.exp(-x))),
    activation.SigmoidBackwardOp: plain(lambda grad, y: grad * y * (1 - y)),
    activation.TanhOp: plain(np.tanh),
    activation.TanhBackwardOp: plain(lambda grad, y: grad * (1 - y * y)),
    loss.LogSoftmaxOp: log_softmax,
    loss.LogSoftmaxBackwardOp: log_softmax_backward,
    loss.NllLossForwardOp: nll_loss,
    loss.NllLossBackwardOp: nll_loss_backward,
}
