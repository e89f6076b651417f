"""Gradients through random masks."""

from csrun.cirh.gradients.table import Backward, Gradients, Rules
from csrun.cirh.ops.base import number
from csrun.cirh.ops.random import MaskedScaleOp


def masked_scale(back: Backward) -> Gradients:
    """The gradient under the same mask; masks have none."""
    scale = number(back.op.properties, "scale")
    grad = back.builder.emit(MaskedScaleOp, back.grad, back.operands[1], scale=scale)
    return [grad, None]


RULES: Rules = {MaskedScaleOp: masked_scale}
