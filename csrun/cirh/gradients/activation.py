"""Gradients of activation functions: ATen's backward operators, from the saved results."""

from csrun.cirh.gradients.table import Backward, Gradients, Rules
from csrun.cirh.ops.activation import (
    ReluOp,
    SigmoidBackwardOp,
    SigmoidOp,
    TanhBackwardOp,
    TanhOp,
    ThresholdBackwardOp,
)


def relu(back: Backward) -> Gradients:
    """g where the result is positive; 0 at 0, as in PyTorch."""
    return [back.builder.emit(ThresholdBackwardOp, back.grad, back.out, threshold=0.0)]


def sigmoid(back: Backward) -> Gradients:
    """g y (1 - y)."""
    return [back.builder.emit(SigmoidBackwardOp, back.grad, back.out)]


def tanh(back: Backward) -> Gradients:
    """g (1 - y y)."""
    return [back.builder.emit(TanhBackwardOp, back.grad, back.out)]


RULES: Rules = {ReluOp: relu, SigmoidOp: sigmoid, TanhOp: tanh}
