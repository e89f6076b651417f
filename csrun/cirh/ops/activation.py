"""Activation functions and their backward operators, each from what ATen saves for it."""

import math
from typing import Any

import numpy as np
from xdsl.dialects.builtin import FloatAttr, StringAttr, TensorType
from xdsl.irdl import irdl_op_definition, operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.backward import Backward, Gradients
from csrun.cirh.ops.base import (
    ASSEMBLY,
    BackwardOp,
    ElementwiseOp,
    Properties,
    Types,
    UnaryOp,
    number,
    require_same,
)
from csrun.cirh.types import Tensor

APPROXIMATIONS = ("none", "tanh")


@irdl_op_definition
class ReluOp(UnaryOp):
    """max(x, 0)."""

    name = "cirh.relu"

    def gradients(self, back: Backward) -> Gradients:
        """g where the result is positive; 0 at 0, as in PyTorch."""
        return [back.emit(ThresholdBackwardOp, back.grad, self.out, threshold=0.0)]

    def compute(self, x: Any) -> Any:
        return np.maximum(x, x.dtype.type(0))


@irdl_op_definition
class ThresholdBackwardOp(BackwardOp):
    """The gradient where the saved tensor is greater than `threshold`, else 0."""

    name = "cirh.threshold_backward"
    threshold = prop_def(FloatAttr)

    def compute(self, grad: Any, saved: Any) -> Any:
        """The gradient where `saved` is above the threshold."""
        return np.where(saved > number(self.properties, "threshold"), grad, 0).astype(grad.dtype)


@irdl_op_definition
class SigmoidOp(UnaryOp):
    """1 / (1 + exp(-x))."""

    name = "cirh.sigmoid"

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(SigmoidBackwardOp, back.grad, self.out, **back.options())]

    def compute(self, x: Any) -> Any:
        return 1 / (1 + np.exp(-x))


@irdl_op_definition
class SigmoidBackwardOp(BackwardOp):
    """grad * y * (1 - y); saved is the output y."""

    name = "cirh.sigmoid_backward"

    def compute(self, grad: Any, y: Any) -> Any:
        return grad * y * (1 - y)


@irdl_op_definition
class TanhOp(UnaryOp):
    """Hyperbolic tangent."""

    name = "cirh.tanh"

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(TanhBackwardOp, back.grad, self.out, **back.options())]

    def compute(self, x: Any) -> Any:
        return np.tanh(x)


@irdl_op_definition
class TanhBackwardOp(BackwardOp):
    """grad * (1 - y * y); saved is the output y."""

    name = "cirh.tanh_backward"

    def compute(self, grad: Any, y: Any) -> Any:
        return grad * (1 - y * y)


@irdl_op_definition
class SiluOp(UnaryOp):
    """x * sigmoid(x)."""

    name = "cirh.silu"

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(SiluBackwardOp, back.grad, self.x, **back.options())]

    def compute(self, x: Any) -> Any:
        return x * sigmoid(x)


@irdl_op_definition
class SiluBackwardOp(BackwardOp):
    """grad * s * (1 + x * (1 - s)), s = sigmoid(x); saved is the input x."""

    name = "cirh.silu_backward"

    def compute(self, grad: Any, x: Any) -> Any:
        return grad * sigmoid(x) * (1 + x * (1 - sigmoid(x)))


@irdl_op_definition
class SoftplusOp(UnaryOp):
    """log(1 + exp(x)): ATen's with beta 1 and threshold 20."""

    name = "cirh.softplus"

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(SoftplusBackwardOp, back.grad, self.x, **back.options())]

    def compute(self, x: Any) -> Any:
        return np.logaddexp(x, x.dtype.type(0))


@irdl_op_definition
class SoftplusBackwardOp(BackwardOp):
    """grad * sigmoid(x); saved is the input x."""

    name = "cirh.softplus_backward"

    def compute(self, grad: Any, x: Any) -> Any:
        return grad * sigmoid(x)


def require_approximation(properties: Properties) -> None:
    """Raises: VerifyException unless `approximate` is ATen's none (exact) or tanh."""
    found = properties["approximate"]
    if not isinstance(found, StringAttr) or found.data not in APPROXIMATIONS:
        raise VerifyException(f"approximate must be none or tanh, got {found}")


@irdl_op_definition
class GeluOp(UnaryOp):
    """x * P(N(0, 1) < x), or its approximation by tanh.

    Source: Hendrycks and Gimpel 2016, section 2
    """

    name = "cirh.gelu"
    approximate = prop_def(StringAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        require_approximation(properties)
        return super().infer(types, properties)

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(GeluBackwardOp, back.grad, self.x, **back.options())]

    def compute(self, x: Any) -> Any:
        """x times the normal distribution function, or its approximation."""
        return x * _cdf(x, self.properties)


@irdl_op_definition
class GeluBackwardOp(BackwardOp):
    """grad * gelu'(x); saved is the input x."""

    name = "cirh.gelu_backward"
    approximate = prop_def(StringAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        require_approximation(properties)
        return super().infer(types, properties)

    def compute(self, grad: Any, x: Any) -> Any:
        """grad times the slope of gelu."""
        cdf = _cdf(x, self.properties)
        return grad * _slope(x, cdf, x * cdf, self.properties)


@irdl_op_definition
class GeluCdfOp(UnaryOp):
    """P(N(0, 1) < x), or its approximation by tanh: what gelu multiplies x by."""

    name = "cirh.gelu_cdf"
    approximate = prop_def(StringAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        require_approximation(properties)
        return super().infer(types, properties)

    def compute(self, x: Any) -> Any:
        """The normal distribution function, or its approximation."""
        return _cdf(x, self.properties)


@irdl_op_definition
class GeluSlopeOp(ElementwiseOp):
    """gelu'(x), from the cdf of x and gelu = x cdf, which are known on the way forward.

    Both have been made of x when this is computed, so that it may take the place of x.
    """

    name = "cirh.gelu_slope"
    x = operand_def(TensorType)
    cdf = operand_def(TensorType)
    gelu = operand_def(TensorType)
    out = result_def(TensorType)
    approximate = prop_def(StringAttr)
    assembly_format = ASSEMBLY

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        require_approximation(properties)
        require_same(types[0], types[1])
        require_same(types[0], types[2])
        return types[0]

    def compute(self, x: Any, cdf: Any, gelu: Any) -> Any:
        """cdf + x times its slope."""
        return _slope(x, cdf, gelu, self.properties)


@irdl_op_definition
class EluOp(UnaryOp):
    """scale * x where x is positive, else scale * alpha * (exp(x) - 1)."""

    name = "cirh.elu"
    alpha = prop_def(FloatAttr)
    scale = prop_def(FloatAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        for name in ("alpha", "scale"):
            if not 0 <= number(properties, name) < math.inf:  # else the output tells no input
                raise VerifyException(
                    f"{name} must be >= 0 and finite, got {number(properties, name)}"
                )
        return super().infer(types, properties)

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(EluBackwardOp, back.grad, self.out, **back.options())]

    def compute(self, x: Any) -> Any:
        """scale (x or alpha (exp(x) - 1))."""
        alpha, scale = number(self.properties, "alpha"), number(self.properties, "scale")
        return np.where(x > 0, scale * x, scale * alpha * np.expm1(x))


@irdl_op_definition
class EluBackwardOp(BackwardOp):
    """grad * scale where y is positive, else grad * (y + alpha * scale); saved is the output y."""

    name = "cirh.elu_backward"
    alpha = prop_def(FloatAttr)
    scale = prop_def(FloatAttr)

    def compute(self, grad: Any, out: Any) -> Any:
        """grad times the slope, from the output."""
        alpha, scale = number(self.properties, "alpha"), number(self.properties, "scale")
        return grad * np.where(out > 0, scale, out + alpha * scale)


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

    def compute(self, x: Any) -> Any:
        """x, or slope x below 0."""
        return np.where(x > 0, x, number(self.properties, "negative_slope") * x)


@irdl_op_definition
class LeakyReluBackwardOp(BackwardOp):
    """grad where y is positive, else negative_slope * grad; saved is the output y."""

    name = "cirh.leaky_relu_backward"
    negative_slope = prop_def(FloatAttr)

    def compute(self, grad: Any, saved: Any) -> Any:
        """grad, or slope grad below 0."""
        return np.where(saved > 0, grad, number(self.properties, "negative_slope") * grad)


@irdl_op_definition
class HardtanhOp(UnaryOp):
    """x cut to min_val..max_val."""

    name = "cirh.hardtanh"
    min_val = prop_def(FloatAttr)
    max_val = prop_def(FloatAttr)

    def gradients(self, back: Backward) -> Gradients:
        return [back.emit(HardtanhBackwardOp, back.grad, self.out, **back.options())]

    def compute(self, x: Any) -> Any:
        """x within its bounds."""
        return np.clip(x, number(self.properties, "min_val"), number(self.properties, "max_val"))


@irdl_op_definition
class HardtanhBackwardOp(BackwardOp):
    """grad where the saved tensor, input or output, is between min_val and max_val, else 0."""

    name = "cirh.hardtanh_backward"
    min_val = prop_def(FloatAttr)
    max_val = prop_def(FloatAttr)

    def compute(self, grad: Any, saved: Any) -> Any:
        """grad strictly between the bounds."""
        low, high = number(self.properties, "min_val"), number(self.properties, "max_val")
        return np.where((saved > low) & (saved < high), grad, 0)


_INNER, _CUBE = math.sqrt(2 / math.pi), 0.044715  # NumPy's own would make float32 float64


def sigmoid(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


def _cdf(x: Any, properties: Properties) -> Any:
    if _is_exact(properties):
        return 0.5 * (1 + _erf(x / math.sqrt(2)))
    return 0.5 * (1 + np.tanh(_INNER * (x + _CUBE * x**3)))


def _slope(x: Any, cdf: Any, gelu: Any, properties: Properties) -> Any:
    if _is_exact(properties):
        return cdf + x * np.exp(-x * x / 2) / math.sqrt(2 * math.pi)
    return cdf + 2 * gelu * (1 - cdf) * _INNER * (1 + 3 * _CUBE * x * x)


def _erf(x: Any) -> Any:
    return np.vectorize(math.erf, otypes=[x.dtype])(x)


def _is_exact(properties: Properties) -> bool:
    return properties["approximate"] == StringAttr("none")


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
    GeluOp,
    GeluBackwardOp,
    GeluCdfOp,
    GeluSlopeOp,
    EluOp,
    EluBackwardOp,
    LeakyReluOp,
    LeakyReluBackwardOp,
    HardtanhOp,
    HardtanhBackwardOp,
)
