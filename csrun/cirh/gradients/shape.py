"""Gradients of operators that move values without changing them."""

from collections.abc import Sequence

from csrun.cirh.gradients.broadcast import reduced_to
from csrun.cirh.gradients.table import Backward, Gradients, Rules
from csrun.cirh.ops.base import ints
from csrun.cirh.ops.shape import ExpandOp, PermuteOp, TransposeOp, ViewOp
from csrun.cirh.types import shape_of, type_of


def view(back: Backward) -> Gradients:
    """The gradient viewed as the operand."""
    shape = shape_of(type_of(back.operands[0]))
    return [back.builder.emit(ViewOp, back.grad, shape=shape)]


def expand(back: Backward) -> Gradients:
    """The gradient summed over the repeated axes."""
    return [reduced_to(back.grad, type_of(back.operands[0]), back.builder)]


def permute(back: Backward) -> Gradients:
    """The gradient permuted back."""
    dims = inverse(ints(back.op.properties, "dims"))
    return [back.builder.emit(PermuteOp, back.grad, dims=dims)]


def transpose(back: Backward) -> Gradients:
    """The gradient transposed."""
    return [back.builder.emit(TransposeOp, back.grad)]


def inverse(dims: Sequence[int]) -> tuple[int, ...]:
    """The permutation that undoes `dims`."""
    return tuple(sorted(range(len(dims)), key=lambda i: dims[i]))


RULES: Rules = {ViewOp: view, ExpandOp: expand, PermuteOp: permute, TransposeOp: transpose}
