"""Attention on preallocated arrays, against PyTorch: shapes, tiles, masks, strides."""

import numpy as np
import pytest

from csrun.kernels import attention
from csrun.kernels.attention import AttentionGradients, AttentionResults, ScoreBlock

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of attention")
functional = torch.nn.functional
SCALE = 0.3


class Ours:
    """Result and gradients for query [B, H, T, E], key [B, H, S, E], value [B, H, S, F]."""

    def __init__(self, q, k, v, grad, mask=None, causal=False, block=4):
        (outer, length, size), (keys, values) = (q.shape[:2], *q.shape[2:]), v.shape[2:]
        dtype, rows = q.dtype, min(block, length)
        unseen = np.empty((rows, keys), bool) if mask is not None and mask.dtype == bool else None
        parts = ((rows, size), (rows, keys), (rows, 1))
        later = attention.later(rows, dtype.name) if causal else None
        block = ScoreBlock(SCALE, *(np.empty(part, dtype) for part in parts), later, unseen)
        self.out = np.empty((*outer, length, values), dtype)
        saved = AttentionResults(self.out, np.empty((*outer, length), dtype), block)
        attention.attend(q, k, v, mask, saved)
        parts = ((rows, keys), (keys, size), (keys, values))
        self.gradients = [np.full(x.shape, np.nan, dtype) for x in (q, k, v)]
        scratch = (np.empty(part, dtype) for part in parts)
        gradients = AttentionGradients(saved, *self.gradients, *scratch)
        attention.attend_backward(grad, q, k, v, mask, gradients)


def theirs(q, k, v, grad, mask=None, causal=False):
    leaves = [torch.from_numpy(x.copy()).requires_grad_() for x in (q, k, v)]
    mask = None if mask is None else torch.from_numpy(mask.copy())
    options = {"attn_mask": mask, "is_causal": causal, "scale": SCALE}
    out = functional.scaled_dot_product_attention(*leaves, **options)
    return out.detach(), torch.autograd.grad(out, leaves, torch.from_numpy(grad.copy()))


def normal(*shape, dtype="float64"):
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def check(q, k, v, mask=None, causal=False, tolerance=1e-12):
    grad = normal(*q.shape[:3], v.shape[3], dtype=q.dtype)
    ours, (out, gradients) = Ours(q, k, v, grad, mask, causal), theirs(q, k, v, grad, mask, causal)
    np.testing.assert_allclose(ours.out, out, rtol=tolerance, atol=tolerance)
    for own, their in zip(ours.gradients, gradients, strict=True):
        np.testing.assert_allclose(own, their, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("length", "keys"), [(1, 1), (4, 4), (9, 9), (3, 9), (9, 3), (8, 5), (1, 9), (9, 1)]
)
def test_blocks_of_any_length(length, keys, causal):
    q, k, v = normal(2, 3, length, 5), normal(2, 3, keys, 5), normal(2, 3, keys, 2)
    check(q, k, v, causal=causal)


def test_nothing_to_attend_to_is_0():
    ours = Ours(normal(2, 3, 5, 4), normal(2, 3, 0, 4), normal(2, 3, 0, 2), normal(2, 3, 5, 2))
    assert not ours.out.any()
    assert not ours.gradients[0].any()


def test_nothing_that_attends():
    ours = Ours(normal(2, 1, 0, 4), normal(2, 1, 3, 4), normal(2, 1, 3, 2), normal(2, 1, 0, 2))
    assert [gradient.any() for gradient in ours.gradients] == [False] * 3


@pytest.mark.parametrize("shape", [(2, 1, 1, 7), (1, 1, 6, 7), (2, 3, 6, 7)])
@pytest.mark.parametrize("kind", ["kept", "added"])
def test_masks_broadcast_and_hide_whole_rows(kind, shape):
    own = normal(*shape) > 0 if kind == "kept" else normal(*shape)
    if kind == "kept":
        own[0, 0] = False
    else:
        own[0, 0, 0, :4] = -np.inf
    mask = np.broadcast_to(own, (2, 3, 6, 7))
    check(normal(2, 3, 6, 5), normal(2, 3, 7, 5), normal(2, 3, 7, 5), mask)


def test_heads_are_read_where_a_projection_wrote_them():
    joined = normal(2, 6, 3, 4, 5, dtype="float32")  # [B, T, 3, H, E]
    q, k, v = (joined[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
    check(q, k, v, causal=True, tolerance=2e-5)


def test_large_scores_do_not_overflow():
    check(1e4 * normal(1, 1, 6, 4), normal(1, 1, 6, 4), normal(1, 1, 6, 4), tolerance=1e-9)
