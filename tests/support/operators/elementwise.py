"""Arithmetic, functions of one number, roundings, choices and activations."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from support.operators.cases import (
    Case,
    X,
    Y,
    case,
    normal,
    positive,
)

from csrun.cirh.ops import (
    activation,
    arithmetic,
    comparison,
    gelu,
    half,
    powers,
    random,
    rounding,
    trigonometry,
)

WITH_ZERO = np.array([[-1.0, 0.0, 2.0], [0.5, -0.5, 0.0]])
TIES = np.array([[0.5, -1.0, 2.0], [0.5, 0.0, -2.0]])
WITHIN_ONE = np.linspace(-0.9, 0.9, 12).reshape(4, 3)
ZEROS = np.zeros((2, 2))
OTHERS = np.array([[0.5, 1.0, -2.0], [-0.5, 0.0, -2.0]])


def _slope_of_gelu(form):
    def peer(torch, x, *known):
        return torch.ops.aten.gelu_backward(torch.ones_like(x), x, approximate=form)

    return peer


#: Of each form of gelu: its cdf, and that of X.
ROOT = (2 / np.pi) ** 0.5
GELU = {
    "none": (lambda torch, x: torch.special.ndtr(x), np.vectorize(NormalDist().cdf)(X)),
    "tanh": (
        lambda torch, x: 0.5 + 0.5 * torch.tanh(ROOT * (x + 0.044715 * x**3)),
        0.5 + 0.5 * np.tanh(ROOT * (X + 0.044715 * X**3)),
    ),
}

FORWARD: Sequence[Case] = (
    case(arithmetic.AddOp, lambda torch, a, b: a + b, X, Y),
    case(arithmetic.AddOp, lambda torch, a, b: a + b, normal(3), X),
    case(arithmetic.SubOp, lambda torch, a, b: a - b, X, normal(4, 1)),
    case(arithmetic.MulOp, lambda torch, a, b: a * b, normal(2, 4, 3), X),
    case(arithmetic.MulOp, lambda torch, a, b: a * b, X, normal()),
    case(arithmetic.DivOp, lambda torch, a, b: a / b, X, positive(4, 3)),
    case(arithmetic.DivOp, lambda torch, a, b: a / b, X, positive(3)),
    case(arithmetic.NegOp, lambda torch, x: -x, X),
    case(arithmetic.ExpOp, lambda torch, x: x.exp(), X),
    case(arithmetic.LogOp, lambda torch, x: x.log(), positive(4, 3)),
    case(arithmetic.SqrtOp, lambda torch, x: x.sqrt(), positive(4, 3)),
    case(arithmetic.ToCopyOp, lambda torch, x: x.double(), X, dtype="float64"),
    case(powers.AbsOp, lambda torch, x: x.abs(), WITH_ZERO),
    case(powers.SignOp, lambda torch, x: x.sign(), WITH_ZERO),
    case(powers.ReciprocalOp, lambda torch, x: x.reciprocal(), positive(4, 3)),
    case(powers.RsqrtOp, lambda torch, x: x.rsqrt(), positive(4, 3)),
    case(powers.Log1pOp, lambda torch, x: x.log1p(), positive(4, 3)),
    case(trigonometry.SinOp, lambda torch, x: x.sin(), X),
    case(trigonometry.CosOp, lambda torch, x: x.cos(), X),
    case(trigonometry.TanOp, lambda torch, x: x.tan(), X),
    case(trigonometry.AsinOp, lambda torch, x: x.asin(), WITHIN_ONE),
    case(trigonometry.AcosOp, lambda torch, x: x.acos(), WITHIN_ONE),
    case(trigonometry.AtanOp, lambda torch, x: x.atan(), X),
    case(trigonometry.SinhOp, lambda torch, x: x.sinh(), X),
    case(trigonometry.CoshOp, lambda torch, x: x.cosh(), X),
    case(trigonometry.AsinhOp, lambda torch, x: x.asinh(), X),
    case(trigonometry.AcoshOp, lambda torch, x: x.acosh(), 1 + positive(4, 3)),
    case(trigonometry.AtanhOp, lambda torch, x: x.atanh(), WITHIN_ONE),
    case(trigonometry.Expm1Op, lambda torch, x: x.expm1(), X),
    case(trigonometry.Atan2Op, lambda torch, a, b: torch.atan2(a, b), X, positive(3)),
    case(rounding.FloorOp, lambda torch, x: x.floor(), 3 * X),
    case(rounding.CeilOp, lambda torch, x: x.ceil(), 3 * X),
    case(rounding.TruncOp, lambda torch, x: x.trunc(), 3 * X),
    case(rounding.RoundOp, lambda torch, x: x.round(), 3 * X),
    case(
        half.RoundHalfOp,
        lambda torch, x: x.to(torch.bfloat16).to(x.dtype).detach() + 0 * x,
        3 * X,
        mantissa_bits=7,
        bias=127,
    ),
    case(
        half.RoundHalfOp,
        lambda torch, x: x.to(torch.float16).to(x.dtype).detach() + 0 * x,
        np.array([0.25, 3.7, 6e3, 1.0003, -2049.2]),
        mantissa_bits=10,
        bias=15,
    ),
    case(
        rounding.FloorDivideOp, lambda torch, a, b: torch.div(a, b, rounding_mode="floor"), 3 * X, Y
    ),
    case(rounding.RemainderOp, lambda torch, a, b: torch.remainder(a, b), 3 * X, Y),
    case(rounding.FmodOp, lambda torch, a, b: torch.fmod(a, b), 3 * X, Y),
    case(powers.PowOp, lambda torch, a, b: a**b, positive(4, 3), normal(3)),
    case(powers.PowOp, lambda torch, a, b: a**b, ZEROS, np.array([[2.0, 0.0], [1, 3]])),
    case(
        comparison.WhereOp,
        lambda torch, c, a, b: torch.where(c, a, b),
        normal(4, 1) > 0,
        X,
        normal(2, 1, 3),
    ),
    case(comparison.MaximumOp, lambda torch, a, b: torch.maximum(a, b), TIES, OTHERS),
    case(comparison.MaximumOp, lambda torch, a, b: torch.maximum(a, b), X, normal(3)),
    case(comparison.MinimumOp, lambda torch, a, b: torch.minimum(a, b), TIES, OTHERS),
    case(
        comparison.ClampOp,
        lambda torch, x: x.clamp(-1.0, 0.5),
        TIES,
        min_val=-1.0,
        max_val=0.5,
    ),
    case(
        comparison.ClampOp,
        lambda torch, x: x.clamp(max=0.0),
        TIES,
        min_val=-np.inf,
        max_val=0.0,
    ),
    case(activation.ReluOp, lambda torch, x: x.relu(), WITH_ZERO),
    case(activation.SigmoidOp, lambda torch, x: x.sigmoid(), X),
    case(activation.TanhOp, lambda torch, x: x.tanh(), X),
    case(
        random.MaskedScaleOp,
        lambda torch, x, mask: x * mask * 1.25,
        X,
        Y > 0,
        scale=1.25,
    ),
    case(activation.SiluOp, lambda torch, x: torch.nn.functional.silu(x), X),
    case(activation.SoftplusOp, lambda torch, x: torch.nn.functional.softplus(x), X),
    case(gelu.GeluOp, lambda torch, x: torch.nn.functional.gelu(x), X, approximate="none"),
    case(
        gelu.GeluOp,
        lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
        X,
        approximate="tanh",
    ),
    *(case(gelu.GeluCdfOp, cdf, X, approximate=form) for form, (cdf, _) in GELU.items()),
    case(
        activation.EluOp,
        lambda torch, x: torch.ops.aten.elu(x, 0.7, 1.1),
        WITH_ZERO,
        alpha=0.7,
        scale=1.1,
    ),
    case(
        activation.LeakyReluOp,
        lambda torch, x: torch.nn.functional.leaky_relu(x, 0.1),
        WITH_ZERO,
        negative_slope=0.1,
    ),
    case(
        activation.SoftshrinkOp,
        lambda torch, x: torch.nn.functional.softshrink(x, 0.4),
        WITH_ZERO,
        lambd=0.4,
    ),
    case(
        activation.HardtanhOp,
        lambda torch, x: torch.nn.functional.hardtanh(x, -0.5, 1.0),
        WITH_ZERO,
        min_val=-0.5,
        max_val=1.0,
    ),
)


WITHOUT_GRADIENT: Sequence[Case] = (
    case(arithmetic.ToCopyOp, lambda torch, x: x.double(), np.arange(6), dtype="float64"),
    case(arithmetic.ToCopyOp, lambda torch, x: x.long(), X > 0, dtype="int64"),
    case(arithmetic.ToCopyOp, lambda torch, x: x.int(), 3 * X, dtype="int32"),
    case(arithmetic.ToCopyOp, lambda torch, x: x.bool(), WITH_ZERO, dtype="bool"),
    case(
        half.NarrowHalfOp,
        lambda torch, x: x.to(torch.float16).view(torch.uint16),
        np.array([1e-9, 3.1e-6, 7e4, 1.0004, -2049.2], np.float32),
        mantissa_bits=10,
        bias=15,
    ),
    case(
        half.HalfWordsOp,
        lambda torch, x: x.to(torch.bfloat16).view(torch.uint16),
        np.array([1.0, -0.0, 1.5 * 2.0**127, 2.0**-130, -1.5], np.float32),
        mantissa_bits=7,
        bias=127,
    ),
    case(
        half.WidenHalfOp,
        lambda torch, words: words.view(torch.bfloat16).float(),
        np.array([0x0001, 0x8000, 0x3F81, 0x7F80], np.uint16),
        mantissa_bits=7,
        bias=127,
    ),
    case(comparison.EqOp, lambda torch, a, b: a == b, TIES, OTHERS),
    case(comparison.NeOp, lambda torch, a, b: a != b, TIES, OTHERS),
    case(comparison.LtOp, lambda torch, a, b: a < b, TIES, OTHERS),
    case(comparison.LeOp, lambda torch, a, b: a <= b, TIES, OTHERS),
    case(comparison.GtOp, lambda torch, a, b: a > b, TIES, normal(3)),
    case(comparison.GeOp, lambda torch, a, b: a >= b, np.arange(6), np.array(3)),
    case(
        activation.ThresholdBackwardOp,
        lambda torch, g, y: torch.ops.aten.threshold_backward(g, y, 0.5),
        normal(2, 3),
        WITH_ZERO,
        threshold=0.5,
    ),
    case(
        activation.SigmoidBackwardOp,
        lambda torch, g, y: torch.ops.aten.sigmoid_backward(g, y),
        X,
        Y,
    ),
    case(activation.SiluBackwardOp, lambda torch, g, x: torch.ops.aten.silu_backward(g, x), X, Y),
    case(
        activation.SoftplusBackwardOp,
        lambda torch, g, x: torch.ops.aten.softplus_backward(g, x, 1, 20),
        X,
        Y,
    ),
    case(
        gelu.GeluBackwardOp,
        lambda torch, g, x: torch.ops.aten.gelu_backward(g, x),
        X,
        Y,
        approximate="none",
    ),
    case(
        gelu.GeluBackwardOp,
        lambda torch, g, x: torch.ops.aten.gelu_backward(g, x, approximate="tanh"),
        X,
        Y,
        approximate="tanh",
    ),
    *(
        case(gelu.GeluSlopeOp, _slope_of_gelu(form), X, of_x, X * of_x, approximate=form)
        for form, (_, of_x) in GELU.items()
    ),
    case(
        activation.EluBackwardOp,
        lambda torch, g, y: torch.ops.aten.elu_backward(g, 0.7, 1.1, 1, True, y),
        normal(2, 3),
        0.5 * WITH_ZERO,
        alpha=0.7,
        scale=1.1,
    ),
    case(
        activation.LeakyReluBackwardOp,
        lambda torch, g, y: torch.ops.aten.leaky_relu_backward(g, y, 0.1, True),
        normal(2, 3),
        WITH_ZERO,
        negative_slope=0.1,
    ),
    case(
        activation.SoftshrinkBackwardOp,
        lambda torch, g, x: torch.ops.aten.softshrink_backward(g, x, 0.5),
        normal(2, 3),
        WITH_ZERO,
        lambd=0.5,
    ),
    case(
        activation.HardtanhBackwardOp,
        lambda torch, g, y: torch.ops.aten.hardtanh_backward(g, y, -0.5, 1.0),
        normal(2, 3),
        WITH_ZERO,
        min_val=-0.5,
        max_val=1.0,
    ),
    case(activation.TanhBackwardOp, lambda torch, g, y: torch.ops.aten.tanh_backward(g, y), X, Y),
)
