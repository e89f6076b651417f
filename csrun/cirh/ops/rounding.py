"""Rounding to integers, rounded quotients, and remainders."""

from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.arithmetic import BinaryOp, DivOp, MulOp, NegOp
from csrun.cirh.ops.base import UnaryOp
from csrun.cirh.ops.shape import ExpandOp
from csrun.cirh.types import shape_of, type_of


def _zeros(back: Backward, like: SSAValue) -> SSAValue:
    return back.emit(ExpandOp, back.full(0.0, back.grad), shape=shape_of(type_of(like)))


class RoundingOp(UnaryOp):
    """A step function of one number, with slope 0."""

    def gradients(self, back: Backward) -> Gradients:
        """0."""
        return [_zeros(back, self.x)]


@irdl_op_definition
class FloorOp(RoundingOp):
    """Largest integer not above x."""

    name = "cirh.floor"

    @staticmethod
    def formula(x: Any) -> Any:
        return np.floor(x)


@irdl_op_definition
class CeilOp(RoundingOp):
    """Smallest integer not below x."""

    name = "cirh.ceil"

    @staticmethod
    def formula(x: Any) -> Any:
        return np.ceil(x)


@irdl_op_definition
class TruncOp(RoundingOp):
    """x truncated towards 0."""

    name = "cirh.trunc"

    @staticmethod
    def formula(x: Any) -> Any:
        return np.trunc(x)


@irdl_op_definition
class RoundOp(RoundingOp):
    """Nearest integer, halves to even."""

    name = "cirh.round"

    @staticmethod
    def formula(x: Any) -> Any:
        return np.rint(x)


@irdl_op_definition
class FloorDivideOp(BinaryOp):
    """Floor of the quotient lhs / rhs."""

    name = "cirh.floor_divide"
    KEEPS_INTEGERS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """(0, 0)."""
        return [
            _zeros(back, x) if wanted else None
            for x, wanted in zip((self.lhs, self.rhs), back.wanted, strict=True)
        ]

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.floor_divide(lhs, rhs)


@irdl_op_definition
class RemainderOp(BinaryOp):
    """lhs modulo rhs, with the sign of rhs."""

    name = "cirh.remainder"
    KEEPS_INTEGERS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """(g, -g floor(a / b))."""
        whole = back.emit(FloorDivideOp, self.lhs, self.rhs)
        return _of_remainder(back, whole)

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.remainder(lhs, rhs)


@irdl_op_definition
class FmodOp(BinaryOp):
    """lhs modulo rhs, with the sign of lhs."""

    name = "cirh.fmod"
    KEEPS_INTEGERS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """(g, -g trunc(a / b))."""
        whole = back.emit(TruncOp, back.emit(DivOp, self.lhs, self.rhs))
        return _of_remainder(back, whole)

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.fmod(lhs, rhs)


def _of_remainder(back: Backward, whole: SSAValue) -> Gradients:
    left = back.fit(0, back.grad) if back.wanted[0] else None
    return [left, back.fitted(1, MulOp, back.grad, back.emit(NegOp, whole))]


OPS = (FloorOp, CeilOp, TruncOp, RoundOp, FloorDivideOp, RemainderOp, FmodOp)
