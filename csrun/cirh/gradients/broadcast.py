"""The way back through broadcasting: sums over the axes that were repeated."""

from xdsl.ir import SSAValue

from csrun.cirh.builder import Builder
from csrun.cirh.ops.reduction import SumOp
from csrun.cirh.ops.shape import ViewOp
from csrun.cirh.types import Tensor, shape_of, type_of


def reduced_to(grad: SSAValue, kind: Tensor, builder: Builder) -> SSAValue:
    """The gradient of an operand of type `kind` that was broadcast to the shape of `grad`."""
    own, full = shape_of(kind), shape_of(type_of(grad))
    padded = (1,) * (len(full) - len(own)) + own
    dims = tuple(d for d, (a, b) in enumerate(zip(padded, full, strict=True)) if a != b)
    if dims:
        grad = builder.emit(SumOp, grad, dims=dims, keepdim=True)
    return builder.emit(ViewOp, grad, shape=own) if padded != own else grad
