"""Powers, logarithms, absolute value and sign."""

from typing import Any, ClassVar

import numpy as np
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.arithmetic import AddOp, BinaryOp, DivOp, LogOp, MulOp, NegOp, SubOp
from csrun.cirh.ops.base import UnaryOp
from csrun.cirh.ops.comparison import EqOp, GeOp, WhereOp
from csrun.cirh.ops.model import FullOp
from csrun.cirh.ops.shape import ExpandOp
from csrun.cirh.types import shape_of, type_of


@irdl_op_definition
class AbsOp(UnaryOp):
    """|x|."""

    name = "cirh.abs"
    KEEPS_INTEGERS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """g times the sign, which is 0 at 0."""
        return [back.emit(MulOp, back.grad, back.emit(SignOp, self.x))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.abs(x)


@irdl_op_definition
class SignOp(UnaryOp):
    """-1, 0 or 1; 0 for NaN."""

    name = "cirh.sign"
    KEEPS_INTEGERS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """0."""
        zero = back.full(0.0, back.grad)
        return [back.emit(ExpandOp, zero, shape=shape_of(type_of(self.x)))]

    @staticmethod
    def formula(x: Any) -> Any:
        return (x > 0).view("i1") - (x < 0).view("i1")  # NumPy's sign of NaN is NaN


@irdl_op_definition
class ReciprocalOp(UnaryOp):
    """1 / x."""

    name = "cirh.reciprocal"

    def gradients(self, back: Backward) -> Gradients:
        """-g y y, from the saved result."""
        square = back.emit(MulOp, self.out, self.out)
        return [back.emit(MulOp, back.grad, back.emit(NegOp, square))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.reciprocal(x)


@irdl_op_definition
class RsqrtOp(UnaryOp):
    """1 / sqrt(x)."""

    name = "cirh.rsqrt"

    def gradients(self, back: Backward) -> Gradients:
        """-g y y y / 2, from the saved result."""
        cube = back.emit(MulOp, back.emit(MulOp, self.out, self.out), self.out)
        slope = back.emit(MulOp, cube, back.full(-0.5, cube))
        return [back.emit(MulOp, back.grad, slope)]

    @staticmethod
    def formula(x: Any) -> Any:
        return 1 / np.sqrt(x)


@irdl_op_definition
class Log1pOp(UnaryOp):
    """log(1 + x), accurate for small x, too."""

    name = "cirh.log1p"

    def gradients(self, back: Backward) -> Gradients:
        """g / (1 + x)."""
        return [back.emit(DivOp, back.grad, back.emit(AddOp, self.x, back.full(1.0, self.x)))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.log1p(x)


@irdl_op_definition
class PowOp(BinaryOp):
    """lhs to the power rhs."""

    name = "cirh.pow"
    KEEPS_INTEGERS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """(g b a^(b - 1), 0 where b is 0; g a^b log(a), 0 where a is 0 and b not below it)."""
        return [self._of_base(back), self._of_exponent(back)]

    def _of_base(self, back: Backward) -> SSAValue | None:
        if not back.wanted[0]:
            return None
        a, b, zero = self.lhs, self.rhs, back.full(0.0, back.grad)
        power = back.emit(PowOp, a, back.emit(SubOp, b, back.full(1.0, b)))
        grad = back.emit(MulOp, back.grad, back.emit(MulOp, b, power))
        known = b.owner.value.value.data if isinstance(b.owner, FullOp) else None
        if known is None or known == 0:
            grad = back.emit(WhereOp, back.emit(EqOp, b, zero), zero, grad)
        return back.fit(0, grad)

    def _of_exponent(self, back: Backward) -> SSAValue | None:
        if not back.wanted[1]:
            return None
        a, b, zero = self.lhs, self.rhs, back.full(0.0, back.grad)
        grad = back.emit(MulOp, back.grad, back.emit(MulOp, self.out, back.emit(LogOp, a)))
        grad = back.emit(WhereOp, back.emit(GeOp, b, zero), self._unless_zero(back, grad), grad)
        return back.fit(1, grad)

    def _unless_zero(self, back: Backward, grad: SSAValue) -> SSAValue:
        zero = back.full(0.0, back.grad)
        return back.emit(WhereOp, back.emit(EqOp, self.lhs, zero), zero, grad)

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.power(lhs, rhs)


OPS = (AbsOp, SignOp, ReciprocalOp, RsqrtOp, Log1pOp, PowOp)
