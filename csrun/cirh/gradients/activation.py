"""Gradients of activation functions: ATen's backward operators, from what each of them saves."""

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
from csrun.cirh.ops.base import BackwardOp, Plain


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


RULES: Rules = {
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
