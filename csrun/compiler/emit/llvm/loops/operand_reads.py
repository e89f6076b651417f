"""Operands of an operator, as it reads them."""

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineConstantExpr, AffineDimExpr, AffineMap

from csrun.cirh.types import shape_of, type_of
from csrun.compiler.emit.llvm.lane_values import NoMachineCodeError
from csrun.compiler.graph.array import Shape


@dataclass(frozen=True)
class OperandRead:
    """An operand: a value, or a view of it, at the indices of a map.

    base: the value under its views.
    inner: inner axes of the operator's space.
    has_rows: whether the first axis of the space is that of the kernel's rows.
    """

    base: SSAValue
    value: SSAValue
    where: AffineMap
    inner: Shape
    has_rows: bool

    @property
    def is_view(self) -> bool:
        return self.base is not self.value

    @property
    def shape(self) -> Shape:
        """Shape under which it is read."""
        return shape_of(type_of(self.value))

    @property
    def is_identity(self) -> bool:
        """Whether each point of the space reads the element at its own indices."""
        points = tuple(AffineDimExpr(d) for d in range(self.where.num_dims))
        return tuple(self.where.results) == points

    def strided(self, strides: Sequence[int]) -> tuple[int, tuple[int, ...], int]:
        """Return strides of the rows and of the inner axes of the space, and the period of the
        rows.

        strides: those of the operand's own axes.
        """
        row, period, axes = 0, 0, [0] * len(self.inner)
        for expression, stride, size in zip(self.where.results, strides, self.shape, strict=True):
            match expression:
                case AffineConstantExpr():
                    continue
                case AffineDimExpr():
                    place = expression.position - self.has_rows
                    if place < 0:
                        row = stride
                    else:
                        axes[place] = stride if size > 1 else 0
                case AffineBinaryOpExpr() if expression.lhs == AffineDimExpr(0) and self.has_rows:
                    row, period = stride, size
                case _:
                    raise NoMachineCodeError(f"an index of {expression}")
        return row, tuple(axes), period
