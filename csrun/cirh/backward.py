"""Context of an operator's gradient rule: requested operands, and a builder of backward
operators.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from csrun.cirh.builder import Builder
from csrun.cirh.ops.base import CirhOp, Plain
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, type_of

Gradients = Sequence[SSAValue | None]


@dataclass(frozen=True)
class Backward:
    """Backward step of one operator: the operator, its result's gradient, and the operands that
    need one.
    """

    op: Operation
    grad: SSAValue
    wanted: tuple[bool, ...]
    builder: Builder

    @property
    def operands(self) -> tuple[SSAValue, ...]:
        return tuple(self.op.operands)

    def options(self, *without: str) -> dict[str, Plain]:
        """The operator's properties, for a backward operator with the same ones."""
        left_out = ("scope", *without)
        return {name: value for name, value in self.op.properties.items() if name not in left_out}

    def emit(self, kind: type[CirhOp], *operands: SSAValue, **properties: Plain) -> SSAValue:
        """Create an operator and return its result."""
        return self.builder.emit(kind, *operands, **properties)

    def emit_all(
        self, kind: type[CirhOp], *operands: SSAValue, **properties: Plain
    ) -> tuple[SSAValue, ...]:
        """Create an operator and return all its results."""
        return self.builder.emit_all(kind, *operands, **properties)

    def full(self, value: float, like: SSAValue) -> SSAValue:
        """Return a constant with the element type of another value."""
        return self.builder.full(value, tensor_type((), dtype_of(type_of(like))))

    def fitted(self, index: int, kind: type[CirhOp], *operands: SSAValue) -> SSAValue | None:
        """Return an operator's result as the gradient of operand `index`, if that needs one."""
        return self.fit(index, self.emit(kind, *operands)) if self.wanted[index] else None

    def fit(self, index: int, grad: SSAValue) -> SSAValue:
        """Return a gradient summed to the shape of operand `index`, which was broadcast."""
        return self.reduced_to(grad, type_of(self.operands[index]))

    def reduced_to(self, grad: SSAValue, kind: Tensor) -> SSAValue:
        """Return the gradient of an operand of type `kind` that was broadcast to the shape of
        `grad`.
        """
        from csrun.cirh.ops.reductions import SumOp  # whose own rules use this module
        from csrun.cirh.ops.shape import ViewOp

        own, full = shape_of(kind), shape_of(type_of(grad))
        padded = (1,) * (len(full) - len(own)) + own
        dims = tuple(d for d, (a, b) in enumerate(zip(padded, full, strict=True)) if a != b)
        if dims:
            grad = self.emit(SumOp, grad, dims=dims, keepdim=True)
        return self.emit(ViewOp, grad, shape=own) if padded != own else grad
