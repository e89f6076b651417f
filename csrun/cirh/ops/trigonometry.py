"""Trigonometric and hyperbolic functions, their inverses, and exp(x) - 1."""

from typing import Any

import numpy as np
from xdsl.ir import SSAValue
from xdsl.irdl import irdl_op_definition

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.arithmetic import AddOp, BinaryOp, DivOp, MulOp, NegOp, SubOp
from csrun.cirh.ops.base import UnaryOp
from csrun.cirh.ops.powers import RsqrtOp


@irdl_op_definition
class SinOp(UnaryOp):
    """Sine of x in radians."""

    name = "cirh.sin"

    def gradients(self, back: Backward) -> Gradients:
        """g cos(x)."""
        return [back.emit(MulOp, back.grad, back.emit(CosOp, self.x))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.sin(x)


@irdl_op_definition
class CosOp(UnaryOp):
    """Cosine of x in radians."""

    name = "cirh.cos"

    def gradients(self, back: Backward) -> Gradients:
        """-g sin(x)."""
        return [back.emit(MulOp, back.grad, back.emit(NegOp, back.emit(SinOp, self.x)))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.cos(x)


@irdl_op_definition
class TanOp(UnaryOp):
    """Tangent of x in radians."""

    name = "cirh.tan"

    def gradients(self, back: Backward) -> Gradients:
        """g (1 + y y), from the saved result."""
        return [back.emit(MulOp, back.grad, _one_plus_square(back, self.out))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.tan(x)


@irdl_op_definition
class AsinOp(UnaryOp):
    """Arc sine, in -pi/2..pi/2."""

    name = "cirh.asin"

    def gradients(self, back: Backward) -> Gradients:
        """g / sqrt(1 - x x)."""
        return [back.emit(MulOp, back.grad, _inverse_slope(back, self.x))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.arcsin(x)


@irdl_op_definition
class AcosOp(UnaryOp):
    """Arc cosine, in 0..pi."""

    name = "cirh.acos"

    def gradients(self, back: Backward) -> Gradients:
        """-g / sqrt(1 - x x)."""
        return [back.emit(MulOp, back.grad, back.emit(NegOp, _inverse_slope(back, self.x)))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.arccos(x)


@irdl_op_definition
class AtanOp(UnaryOp):
    """Arc tangent, in -pi/2..pi/2."""

    name = "cirh.atan"

    def gradients(self, back: Backward) -> Gradients:
        """g / (1 + x x)."""
        return [back.emit(DivOp, back.grad, _one_plus_square(back, self.x))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.arctan(x)


@irdl_op_definition
class Atan2Op(BinaryOp):
    """Angle of the point (rhs, lhs), in -pi..pi."""

    name = "cirh.atan2"

    def gradients(self, back: Backward) -> Gradients:
        """(g b / (a a + b b), -g a / (a a + b b))."""
        a, b = self.lhs, self.rhs
        norm = back.emit(AddOp, back.emit(MulOp, a, a), back.emit(MulOp, b, b))
        share = back.emit(DivOp, back.grad, norm)
        return [back.fitted(0, MulOp, share, b), back.fitted(1, MulOp, back.emit(NegOp, share), a)]

    @staticmethod
    def formula(lhs: Any, rhs: Any) -> Any:
        return np.arctan2(lhs, rhs)


@irdl_op_definition
class SinhOp(UnaryOp):
    """Hyperbolic sine."""

    name = "cirh.sinh"

    def gradients(self, back: Backward) -> Gradients:
        """g cosh(x)."""
        return [back.emit(MulOp, back.grad, back.emit(CoshOp, self.x))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.sinh(x)


@irdl_op_definition
class CoshOp(UnaryOp):
    """Hyperbolic cosine."""

    name = "cirh.cosh"

    def gradients(self, back: Backward) -> Gradients:
        """g sinh(x)."""
        return [back.emit(MulOp, back.grad, back.emit(SinhOp, self.x))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.cosh(x)


@irdl_op_definition
class AsinhOp(UnaryOp):
    """Inverse hyperbolic sine."""

    name = "cirh.asinh"

    def gradients(self, back: Backward) -> Gradients:
        """g / sqrt(x x + 1)."""
        slope = back.emit(RsqrtOp, _one_plus_square(back, self.x))
        return [back.emit(MulOp, back.grad, slope)]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.arcsinh(x)


@irdl_op_definition
class AcoshOp(UnaryOp):
    """Inverse hyperbolic cosine, not below 0."""

    name = "cirh.acosh"

    def gradients(self, back: Backward) -> Gradients:
        """g / sqrt(x x - 1)."""
        square = back.emit(MulOp, self.x, self.x)
        slope = back.emit(RsqrtOp, back.emit(SubOp, square, back.full(1.0, self.x)))
        return [back.emit(MulOp, back.grad, slope)]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.arccosh(x)


@irdl_op_definition
class AtanhOp(UnaryOp):
    """Inverse hyperbolic tangent."""

    name = "cirh.atanh"

    def gradients(self, back: Backward) -> Gradients:
        """g / (1 - x x)."""
        return [back.emit(DivOp, back.grad, _one_minus_square(back, self.x))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.arctanh(x)


@irdl_op_definition
class Expm1Op(UnaryOp):
    """exp(x) - 1, accurate for small x, too."""

    name = "cirh.expm1"

    def gradients(self, back: Backward) -> Gradients:
        """g (y + 1), from the saved result."""
        return [back.emit(MulOp, back.grad, back.emit(AddOp, self.out, back.full(1.0, self.out)))]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.expm1(x)


def _one_plus_square(back: Backward, x: SSAValue) -> SSAValue:
    return back.emit(AddOp, back.emit(MulOp, x, x), back.full(1.0, x))


def _one_minus_square(back: Backward, x: SSAValue) -> SSAValue:
    return back.emit(SubOp, back.full(1.0, x), back.emit(MulOp, x, x))


def _inverse_slope(back: Backward, x: SSAValue) -> SSAValue:
    return back.emit(RsqrtOp, _one_minus_square(back, x))


OPS = (
    SinOp,
    CosOp,
    TanOp,
    AsinOp,
    AcosOp,
    AtanOp,
    Atan2Op,
    SinhOp,
    CoshOp,
    AsinhOp,
    AcoshOp,
    AtanhOp,
    Expm1Op,
)
