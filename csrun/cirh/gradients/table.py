"""How a gradient rule looks, and what rules are handed.

A rule writes backward operators and gives one gradient an operand, None where there is none to give
or none is wanted. Rules are written against ATen's derivative formulas, one table a family.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from csrun.cirh.builder import Builder
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.ops.reduction import SumOp
from csrun.cirh.ops.shape import ViewOp
from csrun.cirh.types import Tensor, shape_of, type_of

Gradients = list[SSAValue | None]


@dataclass(frozen=True)
class Backward:
    """One operator on the way back: itself, its result's gradient, and which operands want one."""

    op: Operation
    grad: SSAValue
    wanted: tuple[bool, ...]
    builder: Builder

    @property
    def out(self) -> SSAValue:
        return self.op.results[0]

    @property
    def operands(self) -> tuple[SSAValue, ...]:
        return tuple(self.op.operands)


Rule = Callable[[Backward], Gradients]
Rules = Mapping[type[CirhOp], Rule]


def reduced_to(grad: SSAValue, kind: Tensor, builder: Builder) -> SSAValue:
    """The gradient of an operand of type `kind` that was broadcast to the shape of `grad`."""
    own, full = shape_of(kind), shape_of(type_of(grad))
    padded = (1,) * (len(full) - len(own)) + own
    dims = tuple(d for d, (a, b) in enumerate(zip(padded, full, strict=True)) if a != b)
    if dims:
        grad = builder.emit(SumOp, grad, dims=dims, keepdim=True)
    return builder.emit(ViewOp, grad, shape=own) if padded != own else grad
