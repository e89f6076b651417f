"""Gradients of activations, losses and random masks: ATen's backward operators."""

from csrun.cirh.gradients.table import Backward, Gradients, Rule, Rules
from csrun.cirh.ops.activation import (
    EluBackwardOp,
    EluOp,
    GeluBackwardOp,
    GeluOp,
    HardtanhBackwardOp,
    HardtanhOp,
    LeakyReluBackwardOp,
    LeakyReluOp,
    ReluOp,
    SigmoidBackwardOp,
    SigmoidOp,
    SiluBackwardOp,
    SiluOp,
    SoftplusBackwardOp,
    SoftplusOp,
    TanhBackwardOp,
    TanhOp,
    ThresholdBackwardOp,
)
from csrun.cirh.ops.base import BackwardOp, Plain, integer, number
from csrun.cirh.ops.loss import (
    LogSoftmaxBackwardOp,
    LogSoftmaxOp,
    NllLossBackwardOp,
    NllLossForwardOp,
)
from csrun.cirh.ops.random import MaskedScaleOp


def relu(back: Backward) -> Gradients:
    """g where the result is positive; 0 at 0, as in PyTorch."""
    return [back.builder.emit(ThresholdBackwardOp, back.grad, back.out, threshold=0.0)]


def from_output(kind: type[BackwardOp]) -> Rule:
    """The rule of an activation whose slope follows from its output."""
    return lambda back: [back.builder.emit(kind, back.grad, back.out, **_options(back))]


def from_input(kind: type[BackwardOp]) -> Rule:
    """The rule of an activation whose slope takes its input."""
    return lambda back: [back.builder.emit(kind, back.grad, back.operands[0], **_options(back))]


def _options(back: Backward) -> dict[str, Plain]:
    return {name: value for name, value in back.op.properties.items() if name != "scope"}


ACTIVATION_RULES: Rules = {
    ReluOp: relu,
    SigmoidOp: from_output(SigmoidBackwardOp),
    TanhOp: from_output(TanhBackwardOp),
    EluOp: from_output(EluBackwardOp),
    LeakyReluOp: from_output(LeakyReluBackwardOp),
    HardtanhOp: from_output(HardtanhBackwardOp),
    SiluOp: from_input(SiluBackwardOp),
    SoftplusOp: from_input(SoftplusBackwardOp),
    GeluOp: from_input(GeluBackwardOp),
}


def log_softmax(back: Backward) -> Gradients:
    """g - softmax(x) * sum(g), from the saved result."""
    dim = integer(back.op.properties, "dim")
    return [back.builder.emit(LogSoftmaxBackwardOp, back.grad, back.out, dim=dim)]


def nll_loss(back: Backward) -> Gradients:
    """-g at each row's label; labels have no gradient."""
    ignored = integer(back.op.properties, "ignore_index")
    grad = back.builder.emit(NllLossBackwardOp, back.grad, *back.operands, ignore_index=ignored)
    return [grad, None]


LOSS_RULES: Rules = {LogSoftmaxOp: log_softmax, NllLossForwardOp: nll_loss}


def masked_scale(back: Backward) -> Gradients:
    """The gradient under the same mask; masks have none."""
    scale = number(back.op.properties, "scale")
    grad = back.builder.emit(MaskedScaleOp, back.grad, back.operands[1], scale=scale)
    return [grad, None]


RANDOM_RULES: Rules = {MaskedScaleOp: masked_scale}

NEURAL_RULES: Rules = {**ACTIVATION_RULES, **LOSS_RULES, **RANDOM_RULES}
