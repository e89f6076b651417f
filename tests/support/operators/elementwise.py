"""Arithmetic, activations, choices, sums, shapes and look-ups."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from support.operators.cases import (
    AS_TEXT,
    LABELS,
    Case,
    X,
    Y,
    case,
    normal,
    not_compiled,
    positive,
)

from csrun.cirh.ops import (
    activation,
    arithmetic,
    comparison,
    concatenation,
    gelu,
    grouped_products,
    half,
    indexing,
    padding,
    powers,
    products,
    random,
    reductions,
    rounding,
    shape,
    sorting,
    trigonometry,
)
from csrun.cirh.ops.loss import IGNORE_INDEX

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
    case(shape.ViewOp, lambda torch, x: x.reshape(2, 6), X, shape=(2, 6)),
    case(shape.ExpandOp, lambda torch, x: x.expand(2, 4, 3), normal(4, 1), shape=(2, 4, 3)),
    case(shape.PermuteOp, lambda torch, x: x.permute(2, 0, 1), normal(2, 3, 4), dims=(2, 0, 1)),
    case(shape.TransposeOp, lambda torch, x: x.t(), X),
    case(
        shape.SliceOp, lambda torch, x: x[:, 1:4:2], normal(3, 5, 2), dim=1, start=1, end=4, step=2
    ),
    case(shape.SliceOp, lambda torch, x: x[2:2], X, dim=0, start=2, end=2, step=1),
    case(shape.SelectOp, lambda torch, x: x[:, :, 3], normal(2, 3, 4), dim=2, index=3),
    case(shape.CloneOp, lambda torch, x: x.clone(), X),
    case(
        shape.SliceBackwardOp,
        lambda torch, g: torch.ops.aten.slice_backward(g, [3, 5], 1, 1, 5, 3),
        normal(3, 2),
        input_sizes=(3, 5),
        dim=1,
        start=1,
        end=5,
        step=3,
    ),
    case(
        shape.SelectBackwardOp,
        lambda torch, g: torch.ops.aten.select_backward(g, [3, 5], 0, 2),
        normal(5),
        input_sizes=(3, 5),
        dim=0,
        index=2,
    ),
    case(
        concatenation.CatOp,
        lambda torch, *x: torch.cat(x, 1),
        normal(2, 3),
        normal(2, 1),
        normal(2, 0),
        dim=1,
    ),
    case(arithmetic.AddOp, lambda torch, a, b: a + b, X, Y),
    case(arithmetic.AddOp, lambda torch, a, b: a + b, normal(3), X),
    case(arithmetic.SubOp, lambda torch, a, b: a - b, X, normal(4, 1)),
    case(arithmetic.MulOp, lambda torch, a, b: a * b, normal(2, 4, 3), X),
    case(arithmetic.MulOp, lambda torch, a, b: a * b, X, normal()),
    case(arithmetic.DivOp, lambda torch, a, b: a / b, X, positive(4, 3)),
    case(arithmetic.DivOp, lambda torch, a, b: a / b, X, positive(3)),
    case(arithmetic.NegOp, lambda torch, x: -x, X),
    case(padding.ShareOp, lambda torch, x: x / 3, X, parts=3),
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
    case(products.MmOp, lambda torch, a, b: a @ b, X, normal(3, 5)),
    case(products.MatmulOp, lambda torch, a, b: a @ b, normal(2, 4, 3), normal(2, 3, 5)),
    case(products.MatmulOp, lambda torch, a, b: a @ b, normal(6, 1, 4, 3), normal(2, 3, 1)),
    case(products.MatmulOp, lambda torch, a, b: a @ b, normal(4, 3), normal(2, 3, 5)),
    case(products.AddmmOp, lambda torch, c, a, b: torch.addmm(c, a, b), normal(5), X, normal(3, 5)),
    case(reductions.AmaxOp, lambda torch, x: x.amax(1), TIES, dims=(1,), keepdim=False),
    case(
        reductions.AmaxOp,
        lambda torch, x: x.amax((0, 2), True),
        np.round(normal(2, 3, 4)),
        dims=(0, 2),
        keepdim=True,
    ),
    case(reductions.AminOp, lambda torch, x: x.amin(0), TIES, dims=(0,), keepdim=False),
    case(
        indexing.GatherOp,
        lambda torch, x, i: x.gather(1, i),
        normal(4, 5),
        np.array([[4, 0, 4], [1, 1, 1]]),
        dim=1,
    ),
    case(
        indexing.GatherOp,
        lambda torch, x, i: x.gather(0, i),
        normal(3, 2, 2),
        np.array([[[2, 0]], [[1, 1]], [[2, 2]], [[0, 1]]]),
        dim=0,
    ),
    case(
        indexing.IndexSelectOp,
        lambda torch, x, i: x.index_select(1, i),
        normal(2, 4, 3),
        np.array([3, 0, 3, 3, 1]),
        dim=1,
    ),
    case(
        indexing.IndexSelectBackwardOp,
        lambda torch, g, i: torch.zeros(2, 4, 3, dtype=g.dtype).index_add(1, i, g),
        normal(2, 5, 3),
        np.array([3, 0, 3, 3, 1]),
        input_sizes=(2, 4, 3),
        dim=1,
    ),
    case(reductions.SumOp, lambda torch, x: x.sum(0), X, dims=(0,), keepdim=False),
    case(
        reductions.SumOp,
        lambda torch, x: x.sum((0, 2), True),
        normal(2, 3, 4),
        dims=(0, 2),
        keepdim=True,
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
    *not_compiled(
        AS_TEXT,
        case(
            padding.MaskPaddingOp,
            lambda torch, x, n: torch.where((torch.arange(6) < 2 * n)[:, None], x, 0.5),
            normal(6, 3),
            np.array(2),
            dim=0,
            rows=2,
            value=0.5,
        ),
    ),
    *not_compiled(
        AS_TEXT,
        case(
            padding.MaskPaddingOp,
            lambda torch, x, n: torch.where(torch.arange(6)[:, None] < n, x, -1.0),
            normal(2, 6, 3),
            np.array(5),
            dim=1,
            rows=1,
            value=-1.0,
        ),
    ),
)


WITHOUT_GRADIENT: Sequence[Case] = (
    case(padding.FirstPartOp, lambda torch, x, first: x, X, np.zeros(())),
    case(padding.FirstPartOp, lambda torch, x, first: 0 * x, X, np.full((), 3.0)),
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
        padding.LabelCountOp,
        lambda torch, labels: torch.ops.aten.nll_loss_forward(
            torch.zeros((4, 3), dtype=torch.float64), labels, None, 2, IGNORE_INDEX
        )[1],
        LABELS,
        ignore_index=IGNORE_INDEX,
        dtype="float64",
    ),
    case(
        indexing.GatherBackwardOp,
        lambda torch, g, i: torch.zeros(4, 5, dtype=g.dtype).scatter_add(1, i, g),
        normal(2, 3),
        np.array([[4, 0, 4], [1, 1, 1]]),
        input_sizes=(4, 5),
        dim=1,
    ),
    case(reductions.ArgmaxOp, lambda torch, x: x.argmax(1), X, dim=1),
    case(
        sorting.ArgsortOp,
        lambda torch, x: x.argsort(stable=True, dim=1),
        TIES,
        dim=1,
        descending=False,
    ),
    case(
        sorting.ArgsortOp,
        lambda torch, x: x.argsort(stable=True, dim=0, descending=True),
        np.array([[3, 1], [0, 1], [3, 4]]),
        dim=0,
        descending=True,
    ),
    case(
        grouped_products.GroupedMmOp,
        lambda torch, x, w, ends: torch.cat([x[:2] @ w[0], x[2:5] @ w[2], 0 * (x[5:] @ w[0])]),
        normal(6, 3),
        normal(3, 3, 4),
        np.array([2, 2, 5]),
    ),
    case(
        grouped_products.GroupedOuterOp,
        lambda torch, a, b, ends: torch.stack([a[:, :2] @ b[:2], 0 * (a @ b), a[:, 2:5] @ b[2:5]]),
        normal(3, 6),
        normal(6, 4),
        np.array([2, 2, 5]),
    ),
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
