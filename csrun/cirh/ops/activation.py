"""Activation functions and their backward operators, each from what ATen saves for it."""

import math

from xdsl.dialects.builtin import FloatAttr, StringAttr
from xdsl.irdl import irdl_op_definition, prop_def
from xdsl.utils.exceptions import VerifyException

from csrun.cirh.ops.base import BackwardOp, Properties, Types, UnaryOp, number
from csrun.cirh.types import Tensor

APPROXIMATIONS = ("none", "tanh")


@irdl_op_definition
class ReluOp(UnaryOp):
    """max(x, 0)."""

    name = "cirh.relu"


@irdl_op_definition
class ThresholdBackwardOp(BackwardOp):
    """The gradient where the saved tensor is greater than `threshold`, else 0."""

    name = "cirh.threshold_backward"
    threshold = prop_def(FloatAttr)


@irdl_op_definition
class SigmoidOp(UnaryOp):
    """1 / (1 + exp(-x))."""

    name = "cirh.sigmoid"


@irdl_op_definition
class SigmoidBackwardOp(BackwardOp):
    """grad * y * (1 - y); saved is the output y."""

    name = "cirh.sigmoid_backward"


@irdl_op_definition
class TanhOp(UnaryOp):
    """Hyperbolic tangent."""

    name = "cirh.tanh"


@irdl_op_definition
class TanhBackwardOp(BackwardOp):
    """grad * (1 - y * y); saved is the output y."""

    name = "cirh.tanh_backward"


@irdl_op_definition
class SiluOp(UnaryOp):
    """x * sigmoid(x)."""

    name = "cirh.silu"


@irdl_op_definition
class SiluBackwardOp(BackwardOp):
    """grad * s * (1 + x * (1 - s)), s = sigmoid(x); saved is the input x."""

    name = "cirh.silu_backward"


@irdl_op_definition
class SoftplusOp(UnaryOp):
    """log(1 + exp(x)): ATen's with beta 1 and threshold 20."""

    name = "cirh.softplus"


@irdl_op_definition
class SoftplusBackwardOp(BackwardOp):
    """grad * sigmoid(x); saved is the input x."""

    name = "cirh.softplus_backward"


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


@irdl_op_definition
class GeluBackwardOp(BackwardOp):
    """grad * gelu'(x); saved is the input x."""

    name = "cirh.gelu_backward"
    approximate = prop_def(StringAttr)

    @classmethod
    def infer(cls, types: Types, properties: Properties) -> Tensor:
        require_approximation(properties)
        return super().infer(types, properties)


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


@irdl_op_definition
class EluBackwardOp(BackwardOp):
    """grad * scale where y is positive, else grad * (y + alpha * scale); saved is the output y."""

    name = "cirh.elu_backward"
    alpha = prop_def(FloatAttr)
    scale = prop_def(FloatAttr)


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


@irdl_op_definition
class LeakyReluBackwardOp(BackwardOp):
    """grad where y is positive, else negative_slope * grad; saved is the output y."""

    name = "cirh.leaky_relu_backward"
    negative_slope = prop_def(FloatAttr)


@irdl_op_definition
class HardtanhOp(UnaryOp):
    """x cut to min_val..max_val."""

    name = "cirh.hardtanh"
    min_val = prop_def(FloatAttr)
    max_val = prop_def(FloatAttr)


@irdl_op_definition
class HardtanhBackwardOp(BackwardOp):
    """grad where the saved tensor, input or output, is between min_val and max_val, else 0."""

    name = "cirh.hardtanh_backward"
    min_val = prop_def(FloatAttr)
    max_val = prop_def(FloatAttr)


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
    EluOp,
    EluBackwardOp,
    LeakyReluOp,
    LeakyReluBackwardOp,
    HardtanhOp,
    HardtanhBackwardOp,
)
