"""Elementwise arithmetic; two operands broadcast as in NumPy."""

from itertools import zip_longest
from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import (
    StringAttr,
    TensorType,
)
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import (
    ElementwiseOp,
    Properties,
    Types,
    UnaryOp,
    require_same_dtype,
)
from csrun.cirh.types import Tensor, dtype_of, shape_of, tensor_type, text_of, type_of


class BinaryOp(ElementwiseOp):
    """Two operands that broadcast."""

    WRITES_OVER: ClassVar[tuple[str, ...]] = ("lhs", "rhs")
    #: Whether the operands may be swapped.
    COMMUTES: ClassVar[bool] = False
    #: Number that, as right operand, leaves the left one unchanged.
    NEUTRAL: ClassVar[float | None] = None

    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        require_same_dtype(types)
        return tensor_type(broadcast(types[0], types[1]), dtype_of(types[0]))


def broadcast(a: Tensor, b: Tensor) -> tuple[int, ...]:
    """Return the shape that two tensors broadcast to.

    Raises: VerifyException if an axis differs and neither side is 1
    """
    shape = []
    for m, n in zip_longest(shape_of(a)[::-1], shape_of(b)[::-1], fillvalue=1):
        if m != n and 1 not in (m, n):
            raise VerifyException(f"shapes {text_of(a)} and {text_of(b)} do not broadcast")
        shape.append(n if m == 1 else m)
    return tuple(shape[::-1])


@irdl_op_definition
class AddOp(BinaryOp):
    """lhs + rhs."""

    name = "cirh.add"
    NUMBER: ClassVar = "({} + {})"
    COMMUTES: ClassVar = True
    KEEPS_INTEGERS: ClassVar = True
    FOLDS: ClassVar = True
    NEUTRAL: ClassVar = 0.0
    LINEAR_IN: ClassVar = (frozenset({0, 1}),)

    def gradients(self, back: Backward) -> Gradients:
        """(g, g)."""
        return [back.fit(i, back.grad) if back.wanted[i] else None for i in (0, 1)]

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.add(lhs, rhs)


@irdl_op_definition
class SubOp(BinaryOp):
    """lhs - rhs."""

    name = "cirh.sub"
    NUMBER: ClassVar = "({} - {})"
    KEEPS_INTEGERS: ClassVar = True
    FOLDS: ClassVar = True
    NEUTRAL: ClassVar = 0.0
    LINEAR_IN: ClassVar = (frozenset({0, 1}),)

    def gradients(self, back: Backward) -> Gradients:
        """(g, -g)."""
        left = back.fit(0, back.grad) if back.wanted[0] else None
        return [left, back.fitted(1, NegOp, back.grad)]

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.subtract(lhs, rhs)


@irdl_op_definition
class MulOp(BinaryOp):
    """lhs * rhs."""

    name = "cirh.mul"
    NUMBER: ClassVar = "({} * {})"
    COMMUTES: ClassVar = True
    KEEPS_INTEGERS: ClassVar = True
    FOLDS: ClassVar = True
    NEUTRAL: ClassVar = 1.0
    LINEAR_IN: ClassVar = (frozenset({0}), frozenset({1}))

    def gradients(self, back: Backward) -> Gradients:
        """(g b, g a)."""
        return [
            back.fitted(0, MulOp, back.grad, self.rhs),
            back.fitted(1, MulOp, back.grad, self.lhs),
        ]

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.multiply(lhs, rhs)


@irdl_op_definition
class DivOp(BinaryOp):
    """lhs / rhs."""

    name = "cirh.div"
    NUMBER: ClassVar = "({} / {})"
    FOLDS: ClassVar = True
    NEUTRAL: ClassVar = 1.0
    LINEAR_IN: ClassVar = (frozenset({0}),)

    def gradients(self, back: Backward) -> Gradients:
        """(g / b, -g (a / b) / b)."""
        emit, b = back.emit, self.rhs
        left = back.fitted(0, DivOp, back.grad, b)
        if not back.wanted[1]:
            return [left, None]
        slope = emit(NegOp, emit(DivOp, self.out, b))
        return [left, back.fit(1, emit(MulOp, back.grad, slope))]

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.divide(lhs, rhs)


@irdl_op_definition
class NegOp(UnaryOp):
    """-x."""

    name = "cirh.neg"
    NUMBER: ClassVar = "(-{})"
    KEEPS_INTEGERS: ClassVar = True
    FOLDS: ClassVar = True
    LINEAR_IN: ClassVar = (frozenset({0}),)

    def gradients(self, back: Backward) -> Gradients:
        """-g."""
        return [back.emit(NegOp, back.grad)]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.negative(x)


@irdl_op_definition
class ExpOp(UnaryOp):
    """e to the power x."""

    name = "cirh.exp"
    FOLDS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """g e^x, from the saved result."""
        return [back.emit(MulOp, back.grad, self.out)]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.exp(x)


@irdl_op_definition
class LogOp(UnaryOp):
    """Natural logarithm."""

    name = "cirh.log"
    FOLDS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """g / x."""
        return [back.emit(DivOp, back.grad, self.x)]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.log(x)


@irdl_op_definition
class SqrtOp(UnaryOp):
    """Square root."""

    name = "cirh.sqrt"
    FOLDS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """g / (2 sqrt(x)), from the saved result."""
        emit = back.emit
        return [emit(DivOp, back.grad, emit(AddOp, self.out, self.out))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.sqrt(x)


@irdl_op_definition
class ToCopyOp(UnaryOp):
    """Cast to another type; floats are truncated to integers, or become True unless 0."""

    name = "cirh._to_copy"
    WRITES_OVER: ClassVar = ()
    LINEAR_IN: ClassVar = (frozenset({0}),)
    dtype = prop_def(StringAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The operand's sizes, of the new element type."""
        dtype = properties["dtype"]
        if not isinstance(dtype, StringAttr):
            raise VerifyException(f"dtype must be a name, got {dtype}")
        return tensor_type(shape_of(types[0]), dtype.data)

    def gradients(self, back: Backward) -> Gradients:
        """The gradient as the operand's type; None unless that is a float."""
        return [back.emit(ToCopyOp, back.grad, dtype=dtype_of(type_of(self.x)))]

    def compute(self, x: Any) -> Any:
        """The numbers as another type."""
        dtype = self.properties["dtype"]
        assert isinstance(dtype, StringAttr)
        return x.astype(dtype.data)


OPS = (
    AddOp,
    SubOp,
    MulOp,
    DivOp,
    NegOp,
    ExpOp,
    LogOp,
    SqrtOp,
    ToCopyOp,
)
