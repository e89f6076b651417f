"""One case an operator: how to write it in CIRH, the same in PyTorch, and operands to try it on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from csrun.base.mode import IGNORE_INDEX
from csrun.cirh.ops import (
    activation,
    arithmetic,
    attention,
    batch,
    embedding,
    loss,
    normalization,
    parts,
    random,
    rotary,
    shape,
)
from csrun.cirh.ops.base import CirhOp

numbers = np.random.default_rng(5)
LABELS = np.array([2, IGNORE_INDEX, 0, 1])


@dataclass(frozen=True)
class Case:
    """An operator on operands; `peer` is PyTorch's, given the module and the tensors.

    result: which one of several is compared.
    """

    op: type[CirhOp]
    peer: Callable
    operands: tuple[np.ndarray, ...]
    properties: tuple[tuple[str, object], ...] = ()
    result: int = 0

    def emit(self, builder, *values):
        """The operator in CIRH."""
        return builder.emit_all(self.op, *values, **dict(self.properties))[self.result]

    def __str__(self) -> str:
        return "-".join(
            [
                self.op.name.removeprefix("cirh."),
                *(str(a.shape) for a in self.operands),
                *([f"result {self.result}"] if self.result else []),
            ]
        )


def normal(*shape: int) -> np.ndarray:
    """Values of both signs."""
    return numbers.standard_normal(shape)


def positive(*shape: int) -> np.ndarray:
    """Values well above zero."""
    return numbers.uniform(0.5, 2.0, shape)


def _case(op, peer, *operands: np.ndarray, **properties: object) -> Case:
    return Case(op, peer, operands, tuple(properties.items()))


def _cases(op, peer, count: int, *operands: np.ndarray, **properties: object) -> list[Case]:
    """A case for each result of an operator; `peer` gives them all."""
    return [
        Case(op, lambda *a, r=r: peer(*a)[r], operands, tuple(properties.items()), r)
        for r in range(count)
    ]


def _attention(torch, q, k, v, *mask, causal=False, scale=0.5):
    options = {"is_causal": causal, "scale": scale}
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, *mask, **options)


def _row_sums(torch, q, k, *_):
    return (0.5 * q @ k.mT).logsumexp(-1)


def _attention_gradients(torch, grad, q, k, v, *_):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(_attention(torch, *leaves, causal=True), leaves, grad)


def _layer_norm(torch, x, weight, bias):
    return torch.native_layer_norm(x, weight.shape, weight, bias, 1e-3)


def _layer_norm_gradients(torch, grad, x, mean, rstd, weight):
    return torch.ops.aten.native_layer_norm_backward(
        grad, x, weight.shape, mean, rstd, weight, weight, [True, True, True]
    )


def _rms_norm_gradients(torch, grad, x, rrms, weight):
    leaves = [t.clone().requires_grad_() for t in (x, weight)]
    out = torch.nn.functional.rms_norm(leaves[0], weight.shape, leaves[1], 1e-3)
    return torch.autograd.grad(out, leaves, grad)


def _turned(torch, x, size, base, pairs, position):
    """Pairs as complex numbers times exp(j angle); `position` is that of each, as it broadcasts."""
    angles = position * base ** (-torch.arange(0, size, 2).double() / size)
    turning, rest = x[..., :size], x[..., size:]
    if not pairs:
        turning = turning.unflatten(-1, (2, size // 2)).mT.flatten(-2)
    turns = torch.polar(torch.ones_like(angles), angles)
    found = torch.view_as_complex(turning.unflatten(-1, (-1, 2)).contiguous()) * turns
    found = torch.view_as_real(found)
    found = found.flatten(-2) if pairs else found.mT.flatten(-2)
    return torch.cat([found, rest], -1)


X, Y = normal(4, 3), normal(4, 3)
INDICES = np.array([[4, 0, 4], [1, 4, 1]])
Q, K, V = normal(2, 3, 4, 5), normal(2, 3, 6, 5), normal(2, 3, 6, 2)
KEPT = normal(2, 1, 4, 6) > -0.5
KEPT[0, 0, 1] = False  # a row with nothing to attend to
ROWS = normal(2, 4, 3)
MEAN = ROWS.mean(-1, keepdims=True)
RSTD = 1 / np.sqrt(ROWS.var(-1, keepdims=True) + 1e-3)
RRMS = 1 / np.sqrt((ROWS * ROWS).mean(-1, keepdims=True) + 1e-3)


def attended() -> tuple[np.ndarray, np.ndarray]:
    """What a causal attention saves: its result and the logarithm of each row's sum."""
    scores = np.where(np.tri(4, 6, dtype=bool), 0.5 * Q @ K.swapaxes(2, 3), -np.inf)
    total = np.exp(scores).sum(-1, keepdims=True)
    return np.exp(scores) / total @ V, np.log(total[..., 0])


WITH_ZERO = np.array([[-1.0, 0.0, 2.0], [0.5, -0.5, 0.0]])

FORWARD: Sequence[Case] = (
    _case(shape.ViewOp, lambda torch, x: x.reshape(2, 6), X, shape=(2, 6)),
    _case(shape.ExpandOp, lambda torch, x: x.expand(2, 4, 3), normal(4, 1), shape=(2, 4, 3)),
    _case(shape.PermuteOp, lambda torch, x: x.permute(2, 0, 1), normal(2, 3, 4), dims=(2, 0, 1)),
    _case(shape.TransposeOp, lambda torch, x: x.t(), X),
    _case(
        shape.SliceOp, lambda torch, x: x[:, 1:4:2], normal(3, 5, 2), dim=1, start=1, end=4, step=2
    ),
    _case(shape.SliceOp, lambda torch, x: x[2:2], X, dim=0, start=2, end=2, step=1),
    _case(shape.SelectOp, lambda torch, x: x[:, :, 3], normal(2, 3, 4), dim=2, index=3),
    _case(shape.CloneOp, lambda torch, x: x.clone(), X),
    _case(
        parts.SliceBackwardOp,
        lambda torch, g: torch.ops.aten.slice_backward(g, [3, 5], 1, 1, 5, 3),
        normal(3, 2),
        input_sizes=(3, 5),
        dim=1,
        start=1,
        end=5,
        step=3,
    ),
    _case(
        parts.SelectBackwardOp,
        lambda torch, g: torch.ops.aten.select_backward(g, [3, 5], 0, 2),
        normal(5),
        input_sizes=(3, 5),
        dim=0,
        index=2,
    ),
    _case(
        parts.CatOp,
        lambda torch, *x: torch.cat(x, 1),
        normal(2, 3),
        normal(2, 1),
        normal(2, 0),
        dim=1,
    ),
    _case(arithmetic.AddOp, lambda torch, a, b: a + b, X, Y),
    _case(arithmetic.AddOp, lambda torch, a, b: a + b, normal(3), X),
    _case(arithmetic.SubOp, lambda torch, a, b: a - b, X, normal(4, 1)),
    _case(arithmetic.MulOp, lambda torch, a, b: a * b, normal(2, 4, 3), X),
    _case(arithmetic.MulOp, lambda torch, a, b: a * b, X, normal()),
    _case(arithmetic.DivOp, lambda torch, a, b: a / b, X, positive(4, 3)),
    _case(arithmetic.DivOp, lambda torch, a, b: a / b, X, positive(3)),
    _case(arithmetic.NegOp, lambda torch, x: -x, X),
    _case(arithmetic.ExpOp, lambda torch, x: x.exp(), X),
    _case(arithmetic.LogOp, lambda torch, x: x.log(), positive(4, 3)),
    _case(arithmetic.SqrtOp, lambda torch, x: x.sqrt(), positive(4, 3)),
    _case(arithmetic.MmOp, lambda torch, a, b: a @ b, X, normal(3, 5)),
    _case(arithmetic.MatmulOp, lambda torch, a, b: a @ b, normal(2, 4, 3), normal(2, 3, 5)),
    _case(arithmetic.MatmulOp, lambda torch, a, b: a @ b, normal(6, 1, 4, 3), normal(2, 3, 1)),
    _case(arithmetic.MatmulOp, lambda torch, a, b: a @ b, normal(4, 3), normal(2, 3, 5)),
    _case(
        arithmetic.AddmmOp, lambda torch, c, a, b: torch.addmm(c, a, b), normal(5), X, normal(3, 5)
    ),
    _case(arithmetic.SumOp, lambda torch, x: x.sum(0), X, dims=(0,), keepdim=False),
    _case(
        arithmetic.SumOp,
        lambda torch, x: x.sum((0, 2), True),
        normal(2, 3, 4),
        dims=(0, 2),
        keepdim=True,
    ),
    _case(activation.ReluOp, lambda torch, x: x.relu(), WITH_ZERO),
    _case(activation.SigmoidOp, lambda torch, x: x.sigmoid(), X),
    _case(activation.TanhOp, lambda torch, x: x.tanh(), X),
    _case(
        random.MaskedScaleOp,
        lambda torch, x, mask: x * mask * 1.25,
        X,
        Y > 0,
        scale=1.25,
    ),
    _case(activation.SiluOp, lambda torch, x: torch.nn.functional.silu(x), X),
    _case(activation.SoftplusOp, lambda torch, x: torch.nn.functional.softplus(x), X),
    _case(activation.GeluOp, lambda torch, x: torch.nn.functional.gelu(x), X, approximate="none"),
    _case(
        activation.GeluOp,
        lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
        X,
        approximate="tanh",
    ),
    _case(
        activation.EluOp,
        lambda torch, x: torch.ops.aten.elu(x, 0.7, 1.1),
        WITH_ZERO,
        alpha=0.7,
        scale=1.1,
    ),
    _case(
        activation.LeakyReluOp,
        lambda torch, x: torch.nn.functional.leaky_relu(x, 0.1),
        WITH_ZERO,
        negative_slope=0.1,
    ),
    _case(
        activation.HardtanhOp,
        lambda torch, x: torch.nn.functional.hardtanh(x, -0.5, 1.0),
        WITH_ZERO,
        min_val=-0.5,
        max_val=1.0,
    ),
    _case(normalization.SoftmaxOp, lambda torch, x: x.softmax(1), 30 * X, dim=1),
    _case(normalization.SoftmaxOp, lambda torch, x: x.softmax(0), X, dim=0),
    _case(
        normalization.NativeLayerNormOp,
        lambda *operands: _layer_norm(*operands)[0],
        normal(2, 4, 3),
        normal(3),
        normal(3),
        eps=1e-3,
    ),
    _case(
        normalization.NativeLayerNormOp,
        lambda *operands: _layer_norm(*operands)[0],
        normal(2, 4, 3),
        normal(4, 3),
        normal(4, 3),
        eps=1e-3,
    ),
    _case(
        normalization.FusedRmsNormOp,
        lambda torch, x, w: torch.nn.functional.rms_norm(x, w.shape, w, 1e-3),
        normal(2, 4, 3),
        normal(3),
        eps=1e-3,
    ),
    _case(
        embedding.EmbeddingOp,
        lambda torch, w, i: torch.nn.functional.embedding(i, w),
        normal(5, 3),
        INDICES,
        padding_idx=-1,
    ),
    _case(
        embedding.EmbeddingOp,
        lambda torch, w, i: torch.nn.functional.embedding(i, w, padding_idx=4),
        normal(5, 3),
        INDICES,
        padding_idx=4,
    ),
    _case(attention.AttentionOp, _attention, Q, K, V, is_causal=False, scale=0.5),
    _case(
        attention.AttentionOp,
        lambda torch, q, k, v: _attention(torch, q, k, v, causal=True),
        Q,
        K,
        V,
        is_causal=True,
        scale=0.5,
    ),
    _case(attention.AttentionOp, _attention, Q, K, V, KEPT, is_causal=False, scale=0.5),
    _case(
        rotary.RotaryEmbeddingOp,
        lambda torch, x: _turned(torch, x, 4, 100.0, True, torch.arange(3)[:, None]),
        normal(2, 3, 7),
        dim=1,
        rotary_dim=4,
        base=100.0,
        is_interleaved=True,
        is_inverse=False,
    ),
    _case(
        rotary.RotaryEmbeddingOp,
        lambda torch, x: _turned(torch, x, 6, 50.0, False, -torch.arange(4)[:, None, None]),
        normal(2, 4, 3, 6),
        dim=1,
        rotary_dim=6,
        base=50.0,
        is_interleaved=False,
        is_inverse=True,
    ),
    _case(loss.LogSoftmaxOp, lambda torch, x: x.log_softmax(1), 30 * X, dim=1),
    _case(loss.LogSoftmaxOp, lambda torch, x: x.log_softmax(0), X, dim=0),
    _case(
        batch.MaskPaddingOp,
        lambda torch, x, n: torch.where((torch.arange(6) < 2 * n)[:, None], x, 0.5),
        normal(6, 3),
        np.array(2),
        dim=0,
        rows=2,
        value=0.5,
    ),
    _case(
        batch.MaskPaddingOp,
        lambda torch, x, n: torch.where(torch.arange(6)[:, None] < n, x, -1.0),
        normal(2, 6, 3),
        np.array(5),
        dim=1,
        rows=1,
        value=-1.0,
    ),
    _case(
        loss.NllLossForwardOp,
        lambda torch, x, labels: torch.nn.functional.nll_loss(x, labels, reduction="sum"),
        X,
        LABELS,
        ignore_index=IGNORE_INDEX,
    ),
)

WITHOUT_GRADIENT: Sequence[Case] = (
    _case(arithmetic.ToCopyOp, lambda torch, x: x.double(), np.arange(6), dtype="float64"),
    _case(arithmetic.ToCopyOp, lambda torch, x: x.long(), X > 0, dtype="int64"),
    _case(
        batch.LabelCountOp,
        lambda torch, labels: torch.ops.aten.nll_loss_forward(
            torch.zeros((4, 3), dtype=torch.float64), labels, None, 2, IGNORE_INDEX
        )[1],
        LABELS,
        ignore_index=IGNORE_INDEX,
        dtype="float64",
    ),
    _case(
        normalization.SoftmaxBackwardOp,
        lambda torch, g, y: torch.ops.aten._softmax_backward_data(g, y, 1, torch.float64),
        X,
        Y,
        dim=1,
    ),
    *_cases(normalization.NativeLayerNormOp, _layer_norm, 3, ROWS, normal(3), normal(3), eps=1e-3),
    *_cases(
        normalization.NativeLayerNormBackwardOp,
        _layer_norm_gradients,
        3,
        normal(2, 4, 3),
        ROWS,
        MEAN,
        RSTD,
        normal(3),
    ),
    *_cases(
        normalization.FusedRmsNormOp,
        lambda torch, x, w: torch.ops.aten._fused_rms_norm(x, w.shape, w, 1e-3),
        2,
        ROWS,
        normal(3),
        eps=1e-3,
    ),
    *_cases(
        normalization.FusedRmsNormBackwardOp,
        _rms_norm_gradients,
        2,
        normal(2, 4, 3),
        ROWS,
        RRMS,
        normal(3),
    ),
    _case(
        embedding.EmbeddingDenseBackwardOp,
        lambda torch, g, i: torch.ops.aten.embedding_dense_backward(g, i, 5, 4, False),
        normal(2, 3, 2),
        INDICES,
        num_weights=5,
        padding_idx=4,
    ),
    *_cases(
        attention.AttentionOp,
        lambda *operands: (_attention(*operands), _row_sums(*operands)),
        2,
        Q,
        K,
        V,
        is_causal=False,
        scale=0.5,
    ),
    *_cases(
        attention.AttentionBackwardOp,
        _attention_gradients,
        3,
        normal(2, 3, 4, 2),
        Q,
        K,
        V,
        *attended(),
        is_causal=True,
        scale=0.5,
    ),
    _case(arithmetic.ArgmaxOp, lambda torch, x: x.argmax(1), X, dim=1),
    _case(
        activation.ThresholdBackwardOp,
        lambda torch, g, y: torch.ops.aten.threshold_backward(g, y, 0.5),
        normal(2, 3),
        WITH_ZERO,
        threshold=0.5,
    ),
    _case(
        activation.SigmoidBackwardOp,
        lambda torch, g, y: torch.ops.aten.sigmoid_backward(g, y),
        X,
        Y,
    ),
    _case(activation.SiluBackwardOp, lambda torch, g, x: torch.ops.aten.silu_backward(g, x), X, Y),
    _case(
        activation.SoftplusBackwardOp,
        lambda torch, g, x: torch.ops.aten.softplus_backward(g, x, 1, 20),
        X,
        Y,
    ),
    _case(
        activation.GeluBackwardOp,
        lambda torch, g, x: torch.ops.aten.gelu_backward(g, x),
        X,
        Y,
        approximate="none",
    ),
    _case(
        activation.GeluBackwardOp,
        lambda torch, g, x: torch.ops.aten.gelu_backward(g, x, approximate="tanh"),
        X,
        Y,
        approximate="tanh",
    ),
    _case(
        activation.EluBackwardOp,
        lambda torch, g, y: torch.ops.aten.elu_backward(g, 0.7, 1.1, 1, True, y),
        normal(2, 3),
        0.5 * WITH_ZERO,
        alpha=0.7,
        scale=1.1,
    ),
    _case(
        activation.LeakyReluBackwardOp,
        lambda torch, g, y: torch.ops.aten.leaky_relu_backward(g, y, 0.1, True),
        normal(2, 3),
        WITH_ZERO,
        negative_slope=0.1,
    ),
    _case(
        activation.HardtanhBackwardOp,
        lambda torch, g, y: torch.ops.aten.hardtanh_backward(g, y, -0.5, 1.0),
        normal(2, 3),
        WITH_ZERO,
        min_val=-0.5,
        max_val=1.0,
    ),
    _case(activation.TanhBackwardOp, lambda torch, g, y: torch.ops.aten.tanh_backward(g, y), X, Y),
    _case(
        loss.LogSoftmaxBackwardOp,
        lambda torch, g, y: torch.ops.aten._log_softmax_backward_data(g, y, 1, torch.float64),
        X,
        Y,
        dim=1,
    ),
    _case(
        loss.NllLossBackwardOp,
        lambda torch, g, x, labels: torch.ops.aten.nll_loss_backward(
            g, x, labels, None, 2, IGNORE_INDEX, torch.zeros((), dtype=torch.float64)
        ),
        normal(),
        X,
        LABELS,
        ignore_index=IGNORE_INDEX,
    ),
)
