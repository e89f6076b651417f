"""Elementwise comparisons, selection, minimum and maximum."""

from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import FloatAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.arithmetic import BinaryOp, MulOp, broadcast
from csrun.cirh.ops.base import (
    ElementwiseOp,
    Properties,
    Types,
    UnaryOp,
    number,
    require_same_dtype,
)
from csrun.cirh.types import Tensor, dtype_of, tensor_type


class ComparisonOp(BinaryOp):
    """Two operands that broadcast, of one element type; the result is boolean."""

    KEEPS_INTEGERS: ClassVar = True

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The common shape, bool."""
        require_same_dtype(types)
        return tensor_type(broadcast(types[0], types[1]), "bool")


@irdl_op_definition
class EqOp(ComparisonOp):
    """lhs == rhs."""

    name = "cirh.eq"

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.equal(lhs, rhs)


@irdl_op_definition
class NeOp(ComparisonOp):
    """lhs != rhs; NaN is unequal to everything."""

    name = "cirh.ne"

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.not_equal(lhs, rhs)


@irdl_op_definition
class LtOp(ComparisonOp):
    """lhs < rhs."""

    name = "cirh.lt"

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.less(lhs, rhs)


@irdl_op_definition
class LeOp(ComparisonOp):
    """lhs <= rhs."""

    name = "cirh.le"

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.less_equal(lhs, rhs)


@irdl_op_definition
class GtOp(ComparisonOp):
    """lhs > rhs."""

    name = "cirh.gt"

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.greater(lhs, rhs)


@irdl_op_definition
class GeOp(ComparisonOp):
    """lhs >= rhs."""

    name = "cirh.ge"

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.greater_equal(lhs, rhs)


@irdl_op_definition
class WhereOp(ElementwiseOp):
    """lhs where the condition is true, else rhs."""

    name = "cirh.where"
    KEEPS_INTEGERS: ClassVar = True
    WRITES_OVER: ClassVar = ("lhs",)
    LINEAR_IN: ClassVar = (frozenset({1, 2}),)
    condition = operand_def(TensorType)
    lhs = operand_def(TensorType)
    rhs = operand_def(TensorType)
    out = result_def(TensorType)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        """The common shape of all three, with the type of the two values."""
        if dtype_of(types[0]) != "bool":
            raise VerifyException(f"the condition must be bool, got {types[0]}")
        require_same_dtype(types[1:])
        dtype = dtype_of(types[1])
        both = tensor_type(broadcast(types[1], types[2]), dtype)
        return tensor_type(broadcast(types[0], both), dtype)

    def gradients(self, back: Backward) -> Gradients:
        """(None, g where the condition is true, g where it is not)."""
        zero = back.full(0.0, back.grad)
        return [
            None,
            back.fitted(1, WhereOp, self.condition, back.grad, zero),
            back.fitted(2, WhereOp, self.condition, zero, back.grad),
        ]

    @staticmethod
    def formula(condition: Any, lhs: Any, rhs: Any) -> Any:
        return np.where(condition, lhs, rhs)


def _share(back: Backward, index: int, other: type[ComparisonOp]) -> Any:
    """Return g for the selected operand, half of it for equal ones."""
    if not back.wanted[index]:
        return None
    lhs, rhs = back.operands
    half = back.emit(MulOp, back.grad, back.full(0.5, back.grad))
    shared = back.emit(WhereOp, back.emit(EqOp, lhs, rhs), half, back.grad)
    zero = back.full(0.0, back.grad)
    return back.fitted(index, WhereOp, back.emit(other, lhs, rhs), zero, shared)


@irdl_op_definition
class MaximumOp(BinaryOp):
    """Maximum of two; NaN if either is."""

    name = "cirh.maximum"
    KEEPS_INTEGERS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """g to the larger one, half to each of equal ones."""
        return [_share(back, 0, LtOp), _share(back, 1, GtOp)]

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.maximum(lhs, rhs)


@irdl_op_definition
class MinimumOp(BinaryOp):
    """Minimum of two; NaN if either is."""

    name = "cirh.minimum"
    KEEPS_INTEGERS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """g to the smaller one, half to each of equal ones."""
        return [_share(back, 0, GtOp), _share(back, 1, LtOp)]

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.minimum(lhs, rhs)


@irdl_op_definition
class ClampOp(UnaryOp):
    """x clipped to min_val..max_val; max_val if that is the smaller one."""

    name = "cirh.clamp"
    KEEPS_INTEGERS: ClassVar = True
    min_val = prop_def(FloatAttr)
    max_val = prop_def(FloatAttr)

    def gradients(self, back: Backward) -> Gradients:
        """g where x is within the bounds or equal to one."""
        zero = back.full(0.0, back.grad)
        low, high = (back.full(number(self.properties, n), self.x) for n in ("min_val", "max_val"))
        grad = back.emit(WhereOp, back.emit(GeOp, self.x, low), back.grad, zero)
        return [back.emit(WhereOp, back.emit(LeOp, self.x, high), grad, zero)]

    @staticmethod
    def formula(x: Any, min_val: float, max_val: float) -> Any:
        return np.minimum(np.maximum(x, min_val), max_val)


OPS = (EqOp, NeOp, LtOp, LeOp, GtOp, GeOp, WhereOp, MaximumOp, MinimumOp, ClampOp)
