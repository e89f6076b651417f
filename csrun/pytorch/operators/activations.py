"""Activation functions and their backward operators."""

from typing import Any

import numpy as np
from xdsl.ir import SSAValue

from csrun.cirh.ops import activation as ops
from csrun.cirh.ops.arithmetic import AddOp, DivOp, MulOp, NegOp
from csrun.cirh.ops.comparison import GtOp, LtOp, WhereOp
from csrun.cirh.ops.gelu import GeluBackwardOp, GeluOp
from csrun.cirh.ops.powers import AbsOp
from csrun.cirh.ops.trigonometry import Expm1Op
from csrun.pytorch.operators.base import BackwardOnly, Emission, Emitter, dtype


def relu(e: Emission, x: SSAValue) -> SSAValue:
    return e.emit(ops.ReluOp, x)


def threshold_backward(e: Emission, grad: SSAValue, saved: SSAValue, threshold: float) -> SSAValue:
    return e.emit(ops.ThresholdBackwardOp, grad, saved, threshold=float(threshold))


def gelu(e: Emission, x: SSAValue, approximate: str = "none") -> SSAValue:
    return e.emit(GeluOp, x, approximate=approximate)


def gelu_backward(e: Emission, grad: SSAValue, x: SSAValue, approximate: str = "none") -> SSAValue:
    return e.emit(GeluBackwardOp, grad, x, approximate=approximate)


def softplus(e: Emission, x: SSAValue, beta: float = 1, threshold: float = 20) -> SSAValue:
    """log(1 + exp(beta x)) / beta; x where beta x exceeds the threshold."""
    if (beta, threshold) == (1, 20):  # SoftplusOp itself does not overflow
        return e.emit(ops.SoftplusOp, x)
    scaled, factor = _scaled(e, x, beta)
    found = e.emit(DivOp, e.emit(ops.SoftplusOp, scaled), factor)
    return e.emit(WhereOp, _is_above(e, scaled, threshold), x, found)


def softplus_backward(
    e: Emission, grad: SSAValue, x: SSAValue, beta: float = 1, threshold: float = 20
) -> SSAValue:
    if (beta, threshold) == (1, 20):
        return e.emit(ops.SoftplusBackwardOp, grad, x)
    scaled, _ = _scaled(e, x, beta)
    found = e.emit(ops.SoftplusBackwardOp, grad, scaled)
    return e.emit(WhereOp, _is_above(e, scaled, threshold), grad, found)


def _scaled(e: Emission, x: SSAValue, beta: float) -> tuple[SSAValue, SSAValue]:
    factor = e.full(beta, dtype(x))
    return e.emit(MulOp, x, factor), factor


def _is_above(e: Emission, x: SSAValue, bound: float) -> SSAValue:
    return e.emit(GtOp, x, e.full(bound, dtype(x)))


def log_sigmoid(e: Emission, x: SSAValue) -> tuple[SSAValue, BackwardOnly]:
    """-log(1 + exp(-x)). ATen's saved buffer is not computed."""
    return e.emit(NegOp, e.emit(ops.SoftplusOp, e.emit(NegOp, x))), BackwardOnly(x)


def log_sigmoid_backward(e: Emission, grad: SSAValue, x: SSAValue, saved: Any) -> SSAValue:
    return e.emit(ops.SoftplusBackwardOp, grad, e.emit(NegOp, x))


def elu(
    e: Emission, x: SSAValue, alpha: float = 1, scale: float = 1, input_scale: float = 1
) -> SSAValue:
    if input_scale == 1:
        return e.emit(ops.EluOp, x, alpha=float(alpha), scale=float(scale))
    below = e.emit(Expm1Op, e.emit(MulOp, x, e.full(input_scale, dtype(x))))
    below = e.emit(MulOp, below, e.full(alpha * scale, dtype(x)))
    above = e.emit(MulOp, x, e.full(scale, dtype(x)))
    return e.emit(WhereOp, _is_above(e, x, 0), above, below)


def elu_backward(
    e: Emission,
    grad: SSAValue,
    alpha: float,
    scale: float,
    input_scale: float,
    is_result: bool,
    saved: SSAValue,
) -> SSAValue:
    """Compute the slope from the result, recomputed where the operand was saved."""
    out = saved if is_result else elu(e, saved, alpha, scale, input_scale)
    if input_scale == 1:
        return e.emit(ops.EluBackwardOp, grad, out, alpha=float(alpha), scale=float(scale))
    slope = e.emit(AddOp, out, e.full(alpha * scale, dtype(out)))
    slope = e.emit(MulOp, slope, e.full(input_scale, dtype(out)))
    slope = e.emit(WhereOp, _is_above(e, out, 0), e.full(scale, dtype(out)), slope)
    return e.emit(MulOp, grad, slope)


def leaky_relu(e: Emission, x: SSAValue, slope: float = 0.01) -> SSAValue:
    return e.emit(ops.LeakyReluOp, x, negative_slope=float(slope))


def leaky_relu_backward(
    e: Emission, grad: SSAValue, saved: SSAValue, slope: float, is_result: bool
) -> SSAValue:
    """Slope by the sign, which operand and result share."""
    return e.emit(ops.LeakyReluBackwardOp, grad, saved, negative_slope=float(slope))


def hardtanh(e: Emission, x: SSAValue, low: float = -1, high: float = 1) -> SSAValue:
    return e.emit(ops.HardtanhOp, x, min_val=float(low), max_val=float(high))


def hardtanh_backward(
    e: Emission, grad: SSAValue, saved: SSAValue, low: float, high: float
) -> SSAValue:
    return e.emit(ops.HardtanhBackwardOp, grad, saved, min_val=float(low), max_val=float(high))


def softshrink(e: Emission, x: SSAValue, lambd: float = 0.5) -> SSAValue:
    return e.emit(ops.SoftshrinkOp, x, lambd=float(lambd))


def softshrink_backward(e: Emission, grad: SSAValue, x: SSAValue, lambd: float) -> SSAValue:
    return e.emit(ops.SoftshrinkBackwardOp, grad, x, lambd=float(lambd))


#: PyTorch's slope of a hardsigmoid, which it rounds to float32 for float64 as well.
_SIXTH = float(np.float32(1 / 6))


def hardsigmoid_backward(e: Emission, grad: SSAValue, x: SSAValue) -> SSAValue:
    is_inside = e.emit(LtOp, e.emit(AbsOp, x), e.full(3, dtype(x)))
    scaled = e.emit(MulOp, grad, e.full(_SIXTH, dtype(x)))
    return e.emit(WhereOp, is_inside, scaled, e.full(0, dtype(x)))


EMITTERS: dict[str, Emitter] = {
    "aten.relu.default": relu,
    "aten.threshold_backward.default": threshold_backward,
    "aten.sigmoid.default": lambda e, x: e.emit(ops.SigmoidOp, x),
    "aten.sigmoid_backward.default": lambda e, g, y: e.emit(ops.SigmoidBackwardOp, g, y),
    "aten.tanh.default": lambda e, x: e.emit(ops.TanhOp, x),
    "aten.tanh_backward.default": lambda e, g, y: e.emit(ops.TanhBackwardOp, g, y),
    "aten.silu.default": lambda e, x: e.emit(ops.SiluOp, x),
    "aten.silu_backward.default": lambda e, g, x: e.emit(ops.SiluBackwardOp, g, x),
    "aten.gelu.default": gelu,
    "aten.gelu_backward.default": gelu_backward,
    "aten.softplus.default": softplus,
    "aten.softplus_backward.default": softplus_backward,
    "aten.log_sigmoid_forward.default": log_sigmoid,
    "aten.log_sigmoid_backward.default": log_sigmoid_backward,
    "aten.elu.default": elu,
    "aten.elu_backward.default": elu_backward,
    "aten.leaky_relu.default": leaky_relu,
    "aten.leaky_relu_backward.default": leaky_relu_backward,
    "aten.hardtanh.default": hardtanh,
    "aten.hardtanh_backward.default": hardtanh_backward,
    "aten.hardsigmoid_backward.default": hardsigmoid_backward,
    "aten.softshrink.default": softshrink,
    "aten.softshrink_backward.default": softshrink_backward,
    "aten.hardshrink_backward.default": softshrink_backward,  # the same slope
}
