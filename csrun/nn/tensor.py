"""The traced tensor that a model function works on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from xdsl.ir import SSAValue

from csrun.cirh.ops.arithmetic import AddOp, DivOp, MulOp, NegOp, SubOp
from csrun.cirh.ops.base import CirhOp
from csrun.cirh.types import dtype_of, shape_of, tensor_type, text_of, type_of
from csrun.nn.errors import TraceError, located, user_line

if TYPE_CHECKING:
    from collections.abc import Iterator

    from csrun.nn.shapes import Index
    from csrun.nn.tracer import Tracer


class Tensor:
    """A value of the model that is being traced; it has a shape and a type, but no numbers yet."""

    def __init__(self, tracer: Tracer, value: SSAValue) -> None:
        self.tracer = tracer
        self.value = value

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of all axes, the batch first."""
        return shape_of(type_of(self.value))

    @property
    def dtype(self) -> str:
        """NumPy's name of the element type."""
        return dtype_of(type_of(self.value))

    @property
    def name(self) -> str:
        """The value's name in the intermediate representation, '' when it has none."""
        return self.value.name_hint or ""

    def __add__(self, other: Tensor | float) -> Tensor:
        return self._binary(AddOp, self, other)

    def __radd__(self, other: float) -> Tensor:
        return self._binary(AddOp, other, self)

    def __sub__(self, other: Tensor | float) -> Tensor:
        return self._binary(SubOp, self, other)

    def __rsub__(self, other: float) -> Tensor:
        return self._binary(SubOp, other, self)

    def __mul__(self, other: Tensor | float) -> Tensor:
        return self._binary(MulOp, self, other)

    def __rmul__(self, other: float) -> Tensor:
        return self._binary(MulOp, other, self)

    def __truediv__(self, other: Tensor | float) -> Tensor:
        return self._binary(DivOp, self, other)

    def __rtruediv__(self, other: float) -> Tensor:
        return self._binary(DivOp, other, self)

    def __neg__(self) -> Tensor:
        return self.tracer.emit(NegOp, self)

    def __matmul__(self, other: Tensor) -> Tensor:
        from csrun.nn.functions import matmul  # which is written in terms of tensors

        return matmul(self, other)

    def __getitem__(self, key: Index | tuple[Index, ...]) -> Tensor:
        from csrun.nn.shapes import part

        return part(self, key)

    def __iter__(self) -> Iterator[Tensor]:
        """What is at each place of the first axis."""
        return (self[place] for place in range(self.shape[0]))

    def __bool__(self) -> bool:
        raise TraceError(
            f"{user_line()}: a traced tensor has no value while the model is built; "
            "compute with csrun.nn instead of branching on it"
        )

    def __repr__(self) -> str:
        return f"Tensor({text_of(type_of(self.value))}, {self.dtype})"

    def _binary(self, kind: type[CirhOp], lhs: Tensor | float, rhs: Tensor | float) -> Tensor:
        with located(kind.name.removeprefix("cirh.")):
            return self.tracer.emit(kind, self._operand(lhs), self._operand(rhs))

    def _operand(self, value: Tensor | float) -> Tensor:
        if isinstance(value, Tensor):
            return value
        return Tensor(self.tracer, self.tracer.builder.full(value, tensor_type((), self.dtype)))
