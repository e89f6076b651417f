"""Norms, losses, attention, positions and tables of vectors."""

from collections.abc import Sequence
from functools import partial

import numpy as np
from support.operators.cases import LABELS, Case, X, Y, case, cases, normal, not_compiled

from csrun.cirh.ops import (
    attention,
    ctc,
    embedding,
    loss,
    normalization,
    rotary,
    vocab_shards,
)
from csrun.cirh.ops.loss import IGNORE_INDEX


def _attention(torch, q, k, v, *mask, causal=False, scale=0.5):
    options = {"is_causal": causal, "scale": scale}
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, *mask, **options)


def _row_sums(torch, q, k, *_):
    return (0.5 * q @ k.mT).logsumexp(-1)


def _attention_gradients(torch, grad, q, k, v, *_):
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    return torch.autograd.grad(_attention(torch, *leaves, causal=True), leaves, grad)


def _ctc_loss(torch, x, targets, *lengths, zero_infinity=False):
    options = {"blank": 1, "reduction": "none", "zero_infinity": zero_infinity}
    return torch.nn.functional.ctc_loss(x, targets, *lengths, **options)


def _ctc_gradient(torch, grad, x, *others):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(_ctc_loss(torch, x, *others), x, grad)[0]


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


def _rotated(torch, x, size, base, pairs, position):
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


NN_MASK = "a program's mask has each head's rows, as csrun.nn and PyTorch's emitter broadcast it"
DRAWN = "a program's dropout mask is drawn: tests/compiler/kernels/test_attention_dropout.py"
SECOND = "a kernel is along the second of up to three axes, as csrun.nn permutes them"
FUSED = "a kernel is a whole loss's: tests/compiler/kernels/test_cross_entropy.py"
TURNED = "a transposed gradient is no view of pairs: tests/compiler/kernels/test_rotary.py"
INDICES = np.array([[4, 0, 4], [1, 4, 1]])


def _part_looked_up(torch, weight, indices, before):
    """Rows 1, 2, … of a table that is zero elsewhere, over what was before."""
    table = torch.zeros(5, 3, dtype=weight.dtype)
    table[1 : 1 + len(weight)] = weight
    has = (indices >= 1) & (indices < 1 + len(weight))
    return torch.where(has[..., None], torch.nn.functional.embedding(indices, table), before)


def _sums_and_picked(torch, x, labels, sums, picked):
    """Of classes 1, 2, 3: with those before."""
    mine = torch.gather(x, 1, (labels - 1).clamp(0, 2)[:, None])[:, 0]
    has = (labels >= 1) & (labels < 4)
    return torch.stack([sums, x.logsumexp(1)]).logsumexp(0), torch.where(has, mine, picked)


def _loss_of_part(torch, grad, x, sums, labels):
    """Of classes 1, 2, 3: what autograd says of log(sum(exp)) less the label's logit, of all."""
    others = (sums.exp() - x.exp().sum(1)).log()
    x = x.clone().requires_grad_()
    logits = torch.cat([others[:, None], x], 1)
    loss = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    return torch.autograd.grad(loss, x, grad)[0]


Q, K, V = normal(2, 3, 4, 5), normal(2, 3, 6, 5), normal(2, 3, 6, 2)
KEPT = normal(2, 1, 4, 6) > -0.5
KEPT[0, 0, 1] = False  # a row with nothing to attend to
DROPPED = normal(2, 3, 4, 6) > -0.7
ROWS = normal(2, 4, 3)
MEAN = ROWS.mean(-1, keepdims=True)
RSTD = 1 / np.sqrt(ROWS.var(-1, keepdims=True) + 1e-3)
RRMS = 1 / np.sqrt((ROWS * ROWS).mean(-1, keepdims=True) + 1e-3)


def attended() -> tuple[np.ndarray, np.ndarray]:
    """What a causal attention saves: its result and the logarithm of each row's sum."""
    scores = np.where(np.tri(4, 6, dtype=bool), 0.5 * Q @ K.swapaxes(2, 3), -np.inf)
    total = np.exp(scores).sum(-1, keepdims=True)
    return np.exp(scores) / total @ V, np.log(total[..., 0])


#: Log-probabilities of 6 times and 5 samples: labels that repeat, no labels, an input of no time, a
#: target that just fits, and labels behind the end that are no classes.
SEQUENCES = (
    np.log(np.random.default_rng(6).dirichlet(np.ones(4), (6, 5))),
    np.array([[0, 0, 2], [3, 0, 7], [0, 9, 9], [2, 5, 5], [2, 2, 3]]),
    np.array([6, 5, 4, 0, 4]),
    np.array([3, 2, 0, 0, 3]),
)


FORWARD: Sequence[Case] = (
    case(normalization.SoftmaxOp, lambda torch, x: x.softmax(1), 30 * X, dim=1),
    *not_compiled(SECOND, case(normalization.SoftmaxOp, lambda torch, x: x.softmax(0), X, dim=0)),
    case(
        normalization.NativeLayerNormOp,
        lambda *operands: _layer_norm(*operands)[0],
        normal(2, 4, 3),
        normal(3),
        normal(3),
        eps=1e-3,
    ),
    case(
        normalization.NativeLayerNormOp,
        lambda *operands: _layer_norm(*operands)[0],
        normal(2, 4, 3),
        normal(4, 3),
        normal(4, 3),
        eps=1e-3,
    ),
    case(
        normalization.FusedRmsNormOp,
        lambda torch, x, w: torch.nn.functional.rms_norm(x, w.shape, w, 1e-3),
        normal(2, 4, 3),
        normal(3),
        eps=1e-3,
    ),
    case(
        embedding.EmbeddingOp,
        lambda torch, w, i: torch.nn.functional.embedding(i, w),
        normal(5, 3),
        INDICES,
        padding_idx=-1,
    ),
    case(
        embedding.EmbeddingOp,
        lambda torch, w, i: torch.nn.functional.embedding(i, w, padding_idx=4),
        normal(5, 3),
        INDICES,
        padding_idx=4,
    ),
    case(attention.AttentionOp, _attention, Q, K, V, is_causal=False, scale=0.5),
    case(
        attention.AttentionOp,
        lambda torch, q, k, v: _attention(torch, q, k, v, causal=True),
        Q,
        K,
        V,
        is_causal=True,
        scale=0.5,
    ),
    *not_compiled(
        NN_MASK, case(attention.AttentionOp, _attention, Q, K, V, KEPT, is_causal=False, scale=0.5)
    ),
    *not_compiled(
        DRAWN,
        case(
            attention.AttentionOp,
            lambda torch, q, k, v, kept: (0.5 * q @ k.mT).softmax(-1) * kept / 0.75 @ v,
            Q,
            K,
            V,
            DROPPED,
            is_causal=False,
            scale=0.5,
            dropout=0.25,
        ),
    ),
    *not_compiled(
        TURNED,
        case(
            rotary.RotaryEmbeddingOp,
            lambda torch, x: _rotated(torch, x, 4, 100.0, True, torch.arange(3)[:, None]),
            normal(2, 3, 7),
            dim=1,
            rotary_dim=4,
            base=100.0,
            is_interleaved=True,
            is_inverse=False,
        ),
    ),
    case(
        rotary.RotaryEmbeddingOp,
        lambda torch, x: _rotated(torch, x, 6, 50.0, False, -torch.arange(4)[:, None, None]),
        normal(2, 4, 3, 6),
        dim=1,
        rotary_dim=6,
        base=50.0,
        is_interleaved=False,
        is_inverse=True,
    ),
    case(loss.LogSoftmaxOp, lambda torch, x: x.log_softmax(1), 30 * X, dim=1),
    *not_compiled(SECOND, case(loss.LogSoftmaxOp, lambda torch, x: x.log_softmax(0), X, dim=0)),
    *not_compiled(
        FUSED,
        case(
            loss.NllLossForwardOp,
            lambda torch, x, labels: (
                torch.nn.functional.nll_loss(x, labels, reduction="sum") * 0.7
                - 0.3 * x[labels != IGNORE_INDEX].mean(1).sum()
            ),
            X,
            LABELS,
            ignore_index=IGNORE_INDEX,
            label_smoothing=0.3,
        ),
    ),
    *not_compiled(
        FUSED,
        case(
            loss.NllLossForwardOp,
            lambda torch, x, labels: torch.nn.functional.nll_loss(x, labels, reduction="sum"),
            X,
            LABELS,
            ignore_index=IGNORE_INDEX,
        ),
    ),
    case(ctc.CtcLossOp, _ctc_loss, *SEQUENCES, blank=1, zero_infinity=False),
    case(
        ctc.CtcLossOp,
        partial(_ctc_loss, zero_infinity=True),
        *SEQUENCES[:3],
        np.array([3, 2, 1, 1, 3]),
        blank=1,
        zero_infinity=True,
    ),
)


WITHOUT_GRADIENT: Sequence[Case] = (
    case(ctc.CtcLossBackwardOp, _ctc_gradient, normal(5), *SEQUENCES, blank=1, zero_infinity=False),
    case(
        normalization.SoftmaxBackwardOp,
        lambda torch, g, y: torch.ops.aten._softmax_backward_data(g, y, 1, torch.float64),
        X,
        Y,
        dim=1,
    ),
    *cases(normalization.NativeLayerNormOp, _layer_norm, 3, ROWS, normal(3), normal(3), eps=1e-3),
    *cases(
        normalization.NativeLayerNormBackwardOp,
        _layer_norm_gradients,
        3,
        normal(2, 4, 3),
        ROWS,
        MEAN,
        RSTD,
        normal(3),
    ),
    *cases(
        normalization.FusedRmsNormOp,
        lambda torch, x, w: torch.ops.aten._fused_rms_norm(x, w.shape, w, 1e-3),
        2,
        ROWS,
        normal(3),
        eps=1e-3,
    ),
    *cases(
        normalization.FusedRmsNormBackwardOp,
        _rms_norm_gradients,
        2,
        normal(2, 4, 3),
        ROWS,
        RRMS,
        normal(3),
    ),
    case(
        embedding.EmbeddingDenseBackwardOp,
        lambda torch, g, i: torch.ops.aten.embedding_dense_backward(g, i, 5, 4, False),
        normal(2, 3, 2),
        INDICES,
        num_weights=5,
        padding_idx=4,
    ),
    *cases(
        attention.AttentionOp,
        lambda *operands: (_attention(*operands), _row_sums(*operands)),
        2,
        Q,
        K,
        V,
        is_causal=False,
        scale=0.5,
    ),
    *not_compiled(
        "what forward saved is bound, never an input of the batch",
        *cases(
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
    ),
    case(
        vocab_shards.EmbeddingPartOp,
        _part_looked_up,
        normal(3, 3),
        INDICES,
        normal(2, 3, 3),
        num_weights=5,
        first=1,
    ),
    case(
        vocab_shards.EmbeddingPartBackwardOp,
        lambda torch, g, i: torch.ops.aten.embedding_dense_backward(g, i, 5, 4, False)[1:],
        normal(2, 3, 2),
        INDICES,
        rows=4,
        first=1,
        padding_idx=4,
    ),
    *cases(
        vocab_shards.LogSumExpPartOp,
        _sums_and_picked,
        2,
        30 * X,
        LABELS,
        normal(4),
        normal(4),
        first=1,
    ),
    case(
        vocab_shards.NllLossOfSumsOp,
        lambda torch, sums, picked, labels: (sums - picked)[labels != IGNORE_INDEX].sum(),
        normal(4),
        normal(4),
        LABELS,
        classes=3,
        ignore_index=IGNORE_INDEX,
    ),
    case(
        vocab_shards.NllLossPartBackwardOp,
        _loss_of_part,
        normal(),
        X,
        np.log(np.exp(X).sum(1) + 2),
        LABELS,
        first=1,
        ignore_index=IGNORE_INDEX,
    ),
    case(
        loss.LogSoftmaxBackwardOp,
        lambda torch, g, y: torch.ops.aten._log_softmax_backward_data(g, y, 1, torch.float64),
        X,
        Y,
        dim=1,
    ),
    *not_compiled(
        FUSED,
        case(
            loss.NllLossBackwardOp,
            lambda torch, g, x, labels: torch.ops.aten.nll_loss_backward(
                g, x, labels, None, 2, IGNORE_INDEX, torch.zeros((), dtype=torch.float64)
            ),
            normal(),
            X,
            LABELS,
            ignore_index=IGNORE_INDEX,
        ),
    ),
)
