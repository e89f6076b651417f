"""Attention dropout: PyTorch's results under the reference's masks, with any micro-batch size."""

import numpy as np
import pytest
from support.steps import Case, one_step, parameters_of

from csrun import nn
from csrun.base.mode import RunMode
from csrun.cirh.ops.base import attribute
from csrun.cirh.reference import MaskCounter
from csrun.cirh.reference.masks import dropout_mask
from csrun.executable import StepState
from csrun.kernels.random import RunDraw, blocks_of, round_keys
from csrun.nn.errors import TraceError
from csrun.nn.tracer import Tracer

ROWS, LENGTH, SIZE, HEADS, RATE = 8, 21, 6, 2, 0.4
numbers = np.random.default_rng(29)
FEATURES = numbers.standard_normal((ROWS, LENGTH, SIZE))
SLOPES = numbers.standard_normal((ROWS, LENGTH, SIZE))
MASK = numbers.random((ROWS, LENGTH)) > 0.3
SEED, STEP = 5, 3  # those of one_step


def model(causal, masked):
    def build(features, labels):
        x = features[..., :SIZE]
        mask = features[..., None, None, :, SIZE] > 0 if masked else None
        layer = nn.MultiHeadAttention(HEADS, causal, use_bias=False, name="a", dropout=RATE)
        out = layer(x, mask)
        return nn.mean(nn.sum(out * labels, axis=(1, 2)), axis=0), {"out": out}

    return build


def batch(rows):
    packed = np.concatenate([FEATURES, MASK[..., None]], axis=2)
    return packed[:rows], SLOPES[:rows]


def masks(rows):
    """Masks of the attention weights, drawn by the reference Philox."""
    options = {"rate": RATE, "stream": 0, "rows": 1, "runs": HEADS * LENGTH}
    properties = {name: attribute(value) for name, value in options.items()}
    return dropout_mask(properties, (rows, HEADS, LENGTH, LENGTH), MaskCounter(SEED, STEP))


@pytest.mark.parametrize(("causal", "masked"), [(False, False), (True, False), (False, True)])
@pytest.mark.parametrize("rows", [ROWS, 5])
def test_a_step_is_pytorchs_under_the_masks(tmp_path, monkeypatch, causal, masked, rows):
    torch = pytest.importorskip("torch", reason="PyTorch is the oracle of the gradients")
    kept = torch.from_numpy(masks(rows))
    monkeypatch.setattr("csrun.compiler.kernels.attention.BLOCK", 8)
    case = Case(model(causal, masked), batch(rows), size=ROWS)
    found = one_step(case, tmp_path, STEP)
    weights = {
        name: torch.from_numpy(value).requires_grad_()
        for name, value in parameters_of(case.compile(tmp_path).plan).items()
    }
    x = torch.from_numpy(FEATURES[:rows])
    joined = (x @ weights["a/qkv/kernel"]).view(rows, LENGTH, 3, HEADS, SIZE // HEADS)
    q, k, v = joined.permute(2, 0, 3, 1, 4)
    scores = q @ k.mT / (SIZE // HEADS) ** 0.5
    if causal:
        scores = scores.masked_fill(~torch.ones(LENGTH, LENGTH).tril().bool(), -torch.inf)
    if masked:
        seen = torch.from_numpy(MASK[:rows])[:, None, None, :]
        scores = scores.masked_fill(~seen, -torch.inf)
    attended = scores.softmax(-1) * kept / (1 - RATE)
    out = (attended @ v).transpose(1, 2).reshape(rows, LENGTH, SIZE) @ weights["a/out/kernel"]
    loss = (out * torch.from_numpy(SLOPES[:rows])).sum((1, 2)).mean()
    loss.backward()
    assert found.result.loss == pytest.approx(loss.item(), rel=1e-12)
    for name, weight in weights.items():
        np.testing.assert_allclose(found.gradients[name], weight.grad, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("rows", [ROWS, 5])
def test_minibatches_and_blocks_draw_the_same(tmp_path, monkeypatch, rows):
    whole = one_step(Case(model(True, False), batch(rows), size=ROWS), tmp_path, STEP)
    monkeypatch.setattr("csrun.compiler.kernels.attention.BLOCK", 4)
    split = Case(model(True, False), batch(rows), minibatches=4, size=ROWS)
    found = one_step(split, tmp_path, STEP)
    assert found.result.loss == pytest.approx(whole.result.loss, rel=1e-12)
    for name, gradient in whole.gradients.items():
        np.testing.assert_allclose(found.gradients[name], gradient, rtol=1e-10, atol=1e-13)


def test_the_kept_share_is_within_three_deviations():
    count, length = 64, 500
    words = np.empty((3, 2, count, blocks_of(length)), np.uint64)
    draw = RunDraw(np.empty((count, length), bool), words, RATE, 7, round_keys(11))
    kept = draw.of(StepState(rows=1))(0, 0, count).mean()
    assert abs(kept - (1 - RATE)) < 3 * (RATE * (1 - RATE) / (count * length)) ** 0.5


def test_an_evaluation_has_none(tmp_path):
    case = Case(model(True, False), batch(ROWS), run_mode=RunMode.EVAL)
    assert "RunDraw" not in case.compile(tmp_path).program


def test_what_it_cannot_be_of_is_refused():
    with Tracer() as tracer:
        q = tracer.input("q", (4, 2, 3, 5), "float32")
        with pytest.raises(TraceError, match=r"dropout must be in \[0, 1\), got 1"):
            nn.scaled_dot_product_attention(q, q, q, dropout=1)
        turned = nn.transpose(q, (1, 0, 2, 3))
        with pytest.raises(TraceError, match="batch first, got shape"):
            nn.scaled_dot_product_attention(turned, turned, turned, dropout=0.5)
