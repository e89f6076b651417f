"""Gradients of reductions."""

from csrun.cirh.gradients.table import Backward, Gradients, Rules
from csrun.cirh.ops.base import ints
from csrun.cirh.ops.reduction import SumOp
from csrun.cirh.ops.shape import ExpandOp, ViewOp
from csrun.cirh.types import shape_of, type_of


def total(back: Backward) -> Gradients:
    """The gradient repeated along the summed axes."""
    full, dims = shape_of(type_of(back.operands[0])), ints(back.op.properties, "dims")
    kept = tuple(1 if d in dims else n for d, n in enumerate(full))
    grad = back.grad
    if shape_of(type_of(grad)) != kept:
        grad = back.builder.emit(ViewOp, grad, shape=kept)
    return [back.builder.emit(ExpandOp, grad, shape=full)]


RULES: Rules = {SumOp: total}
