"""Activation functions and their backward operators, each from what ATen saves for it."""

from xdsl.dialects.builtin import FloatAttr
from xdsl.irdl import irdl_op_definition, prop_def

from csrun.cirh.ops.base import BackwardOp, UnaryOp


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


OPS = (
    ReluOp,
    ThresholdBackwardOp,
    SigmoidOp,
    SigmoidBackwardOp,
    TanhOp,
    TanhBackwardOp,
)
