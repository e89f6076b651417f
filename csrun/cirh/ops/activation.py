"""Activation functions and their backward operators, each on what ATen saves for it."""

import math
from typing import Any, ClassVar

import numpy as np
from xdsl.dialects.builtin import FloatAttr
from xdsl.irdl import irdl_op_definition, prop_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.math_functions import logistic
from csrun.cirh.ops.base import (
    BackwardOp,
    Properties,
    Types,
    UnaryOp,
    number,
)
from csrun.cirh.types import Tensor


@irdl_op_definition
class ReluOp(UnaryOp):
    """max(x, 0)."""

    name = "cirh.relu"
    KEEPS_INTEGERS: ClassVar = True

    def gradients(self, back: Backward) -> Gradients:
        """g where the result is positive; 0 at 0, as in PyTorch."""
        return [back.emit(ThresholdBackwardOp, back.grad, self.out, threshold=0.0)]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.maximum(x, np.zeros_like(x))  # several times faster than with a 0


@irdl_op_definition
class ThresholdBackwardOp(BackwardOp):
    """0 where the saved tensor is at most `threshold`, else the gradient."""

    name = "cirh.threshold_backward"
    KEEPS_INTEGERS: ClassVar = True
    threshold = prop_def(FloatAttr)

    @staticmethod
    def formula(grad: Any, saved: Any, threshold: float) -> Any:
        return np.where(saved <= threshold, 0, grad)


@irdl_op_definition
class SigmoidOp(UnaryOp):
    """1 / (1 + exp(-x))."""

    name = "cirh.sigmoid"

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(SigmoidBackwardOp, back.grad, self.out, **back.options())]

    @staticmethod
    def formula(x: Any) -> Any:
        return logistic(x)


@irdl_op_definition
class SigmoidBackwardOp(BackwardOp):
    """grad * y * (1 - y); saved is the output y."""

    name = "cirh.sigmoid_backward"

    @staticmethod
    def formula(grad: Any, y: Any) -> Any:
        return grad * y * (1 - y)


@irdl_op_definition
class TanhOp(UnaryOp):
    """Hyperbolic tangent."""

    name = "cirh.tanh"

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(TanhBackwardOp, back.grad, self.out, **back.options())]

    @staticmethod
    def formula(x: Any) -> Any:
        return np.tanh(x)


@irdl_op_definition
class TanhBackwardOp(BackwardOp):
    """grad * (1 - y * y); saved is the output y."""

    name = "cirh.tanh_backward"

    @staticmethod
    def formula(grad: Any, y: Any) -> Any:
        return grad * (1 - y * y)


@irdl_op_definition
class SiluOp(UnaryOp):
    """x * sigmoid(x)."""

    name = "cirh.silu"

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(SiluBackwardOp, back.grad, self.x, **back.options())]

    @staticmethod
    def formula(x: Any) -> Any:
        return x * logistic(x)


@irdl_op_definition
class SiluBackwardOp(BackwardOp):
    """grad * s * ((1 - s) * x + 1), s = logistic(x); saved is the input x."""

    name = "cirh.silu_backward"

    @staticmethod
    def formula(grad: Any, x: Any) -> Any:
        s = logistic(x)
        return grad * (s * ((1 - s) * x + 1))


@irdl_op_definition
class SoftplusOp(UnaryOp):
    """log(1 + exp(x)): ATen's with beta 1 and threshold 20."""

    name = "cirh.softplus"

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(SoftplusBackwardOp, back.grad, self.x, **back.options())]

    @staticmethod
    def formula(x: Any) -> Any:
        """max(x, 0) + log(1 + exp(-|x|)), which does not overflow."""
        tail = np.log1p(np.exp(-np.abs(x)))
        return np.maximum(x, 0) + tail


@irdl_op_definition
class SoftplusBackwardOp(BackwardOp):
    """grad * logistic(x); saved is the input x."""

    name = "cirh.softplus_backward"

    @staticmethod
    def formula(grad: Any, x: Any) -> Any:
        return grad * logistic(x)


@irdl_op_definition
class EluOp(UnaryOp):
    """scale * x where x is positive, else scale * alpha * (exp(x) - 1)."""

    name = "cirh.elu"
    alpha = prop_def(FloatAttr)
    scale = prop_def(FloatAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        for name in ("alpha", "scale"):
            # otherwise the output does not determine the input
            if not 0 <= number(properties, name) < math.inf:
                raise VerifyException(
                    f"{name} must be >= 0 and finite, got {number(properties, name)}"
                )
        return super().infer(types, properties)

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(EluBackwardOp, back.grad, self.out, **back.options())]

    @staticmethod
    def formula(x: Any, alpha: float, scale: float) -> Any:
        below = np.expm1(np.minimum(x, 0)) * alpha
        return (np.maximum(x, 0) + below) * scale


@irdl_op_definition
class EluBackwardOp(BackwardOp):
    """grad * scale where y is positive, else grad * (y + alpha * scale); saved is the output y."""

    name = "cirh.elu_backward"
    alpha = prop_def(FloatAttr)
    scale = prop_def(FloatAttr)

    @staticmethod
    def formula(grad: Any, y: Any, alpha: float, scale: float) -> Any:
        below = y + alpha * scale
        return grad * np.where(y > 0, scale, below)


@irdl_op_definition
class LeakyReluOp(UnaryOp):
    """x where it is positive, else negative_slope * x."""

    name = "cirh.leaky_relu"
    negative_slope = prop_def(FloatAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        slope = number(properties, "negative_slope")
        if not 0 <= slope <= 1:
            raise VerifyException(f"negative_slope must be in [0, 1], got {slope}")
        return super().infer(types, properties)

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(LeakyReluBackwardOp, back.grad, self.out, **back.options())]

    @staticmethod
    def formula(x: Any, negative_slope: float) -> Any:
        if negative_slope:
            return np.maximum(x, x * negative_slope)
        below = np.minimum(x, 0) * 0  # infinity times 0 would be the larger one above
        return np.maximum(x, 0) + below


@irdl_op_definition
class LeakyReluBackwardOp(BackwardOp):
    """grad where y is positive, else negative_slope * grad; saved is the output y."""

    name = "cirh.leaky_relu_backward"
    negative_slope = prop_def(FloatAttr)

    @staticmethod
    def formula(grad: Any, y: Any, negative_slope: float) -> Any:
        return grad * np.where(y > 0, 1, negative_slope)


@irdl_op_definition
class HardtanhOp(UnaryOp):
    """x clipped to min_val..max_val."""

    name = "cirh.hardtanh"
    KEEPS_INTEGERS: ClassVar = True
    min_val = prop_def(FloatAttr)
    max_val = prop_def(FloatAttr)

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(HardtanhBackwardOp, back.grad, self.out, **back.options())]

    @staticmethod
    def formula(x: Any, min_val: float, max_val: float) -> Any:
        return np.minimum(np.maximum(x, min_val), max_val)


@irdl_op_definition
class HardtanhBackwardOp(BackwardOp):
    """0 where the saved tensor, input or output, is not within min_val..max_val, else grad."""

    name = "cirh.hardtanh_backward"
    KEEPS_INTEGERS: ClassVar = True
    min_val = prop_def(FloatAttr)
    max_val = prop_def(FloatAttr)

    @staticmethod
    def formula(grad: Any, saved: Any, min_val: float, max_val: float) -> Any:
        above = np.where(saved <= min_val, 0, grad)
        return np.where(saved >= max_val, 0, above)


@irdl_op_definition
class SoftshrinkOp(UnaryOp):
    """x - lambd above lambd, x + lambd below -lambd, else 0."""

    name = "cirh.softshrink"
    lambd = prop_def(FloatAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        lambd = number(properties, "lambd")
        if not lambd >= 0:
            raise VerifyException(f"lambd must be >= 0, got {lambd}")
        return super().infer(types, properties)

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(SoftshrinkBackwardOp, back.grad, self.x, **back.options())]

    @staticmethod
    def formula(x: Any, lambd: float) -> Any:
        return x - np.minimum(np.maximum(x, -lambd), lambd)


@irdl_op_definition
class SoftshrinkBackwardOp(BackwardOp):
    """0 where |x| is at most `lambd`, else the gradient; saved is the input x."""

    name = "cirh.softshrink_backward"
    lambd = prop_def(FloatAttr)

    @staticmethod
    def formula(grad: Any, x: Any, lambd: float) -> Any:
        return np.where(np.abs(x) <= lambd, 0, grad)


OPS = (
    ReluOp,
    ThresholdBackwardOp,
    SigmoidOp,
    SigmoidBackwardOp,
    TanhOp,
    TanhBackwardOp,
    SiluOp,
    SiluBackwardOp,
    SoftplusOp,
    SoftplusBackwardOp,
    EluOp,
    EluBackwardOp,
    LeakyReluOp,
    LeakyReluBackwardOp,
    HardtanhOp,
    HardtanhBackwardOp,
    SoftshrinkOp,
    SoftshrinkBackwardOp,
)
