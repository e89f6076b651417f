"""MultiHeadAttention with masks of each shape, against torch.nn.MultiheadAttention."""

import numpy as np
import pytest
from support.steps import Case, one_step, parameters_of

from csrun import nn

torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the gradients")
SIZE, HEADS, LENGTH = 6, 2, 5


def features_of(rows):
    """Concatenation of x [B, T, D] and the mask's numbers [B, T, T], whose diagonal is visible."""
    numbers = np.random.default_rng(31)
    x = numbers.standard_normal((rows, LENGTH, SIZE))
    seen = (numbers.random((rows, LENGTH, LENGTH)) > 0.5) | np.eye(LENGTH, dtype=bool)
    seen[:, 0, 0] = True
    return np.concatenate([x, seen], axis=2)


def of_keys(seen):
    return seen[:, 0, :]


def of_pairs(seen):
    """Mask for all samples: pairs visible in most of them; every key sees itself."""
    return nn.mean(seen.astype("float32"), axis=0) > 0.5


def of_samples(seen):
    return seen


def of_broadcast_keys(seen):
    return seen[:, 0, None, None, :]


def peers_mask(shape, seen):
    """Mask of torch.nn.MultiheadAttention, which is true where attention is not allowed."""
    if shape is of_pairs:
        return {"attn_mask": ~(seen.double().mean(0) > 0.5)}
    if shape is of_samples:
        return {"attn_mask": ~seen.repeat_interleave(HEADS, dim=0)}
    return {"key_padding_mask": ~seen[:, 0]}


@pytest.mark.parametrize("rows", [3, LENGTH])  # B is T: [B, T] and [T, T] are of one shape
@pytest.mark.parametrize("shape", [of_keys, of_pairs, of_samples, of_broadcast_keys])
def test_a_masked_step_is_that_of_pytorch(tmp_path, shape, rows):
    def build(features, labels):
        mask = shape(features[..., SIZE:] > 0)
        out = nn.MultiHeadAttention(HEADS, use_bias=False, name="a")(features[..., :SIZE], mask)
        return nn.mean(nn.sum(out * labels, axis=(1, 2)), axis=0), {"out": out}

    features = features_of(rows)
    slopes = np.random.default_rng(37).standard_normal((rows, LENGTH, SIZE))
    case = Case(build, (features, slopes), size=rows)
    found = one_step(case, tmp_path, 0)
    weights = {
        name: torch.from_numpy(value).requires_grad_()
        for name, value in parameters_of(case.compile(tmp_path).plan).items()
    }
    peer = torch.nn.MultiheadAttention(SIZE, HEADS, bias=False, batch_first=True).double()
    x, seen = torch.from_numpy(features[..., :SIZE]), torch.from_numpy(features[..., SIZE:] > 0)
    named = {
        "in_proj_weight": weights["a/qkv/kernel"].T,
        "out_proj.weight": weights["a/out/kernel"].T,
    }
    out, _ = torch.func.functional_call(peer, named, (x, x, x), peers_mask(shape, seen))
    loss = (out * torch.from_numpy(slopes)).sum((1, 2)).mean()
    loss.backward()
    assert found.result.loss == pytest.approx(loss.item(), rel=1e-12)
    for name, weight in weights.items():
        np.testing.assert_allclose(found.gradients[name], weight.grad, rtol=1e-9, atol=1e-12)
