"""Dropout of values, channels and attention, with equal masks in interpreter and program."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.recorded import Beside  # noqa: E402
from support.torch_rows import beside, row, step  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

from csrun.pytorch.lower.interpret import interpret  # noqa: E402


def padded(x):
    """Padding mask: the last key of every other sample is hidden."""
    return torch.zeros(x.shape[:2], dtype=torch.bool).index_fill(1, torch.tensor([2]), True) & (
        torch.arange(len(x))[:, None] % 2 == 1
    )


def later(x):
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)


def weighted_attention(x, a):
    out, weights = a(x, x, x, key_padding_mask=padded(x), attn_mask=later(x))
    return out * weights.sum((1, 2))[:, None, None]


def places_first(x, module):
    return module(x.transpose(0, 1), x.transpose(0, 1)).transpose(0, 1)


def joined_heads(x):
    """Attention and dropout of [B H, T, D], of [T B, D], and with the samples on an inner axis."""
    rows, length, _ = x.shape
    h = x.view(rows, length, 2, -1).transpose(1, 2).flatten(0, 1)
    h = f.scaled_dot_product_attention(h, h, h, dropout_p=0.2, is_causal=True)
    x = x + h.view(rows, 2, length, -1).transpose(1, 2).flatten(2)
    y = f.dropout(x.transpose(0, 1).flatten(0, 1), 0.3).view(length, rows, -1)
    y = y.view(length, rows, 2, -1).transpose(0, 2)  # [heads, samples, places, features]
    y = f.scaled_dot_product_attention(y, y, y, dropout_p=0.2).permute(1, 2, 0, 3).flatten(2)[None]
    return x + y[0] + f.dropout1d(x, 0.5)


def encoder(**options):
    return nn.TransformerEncoderLayer(8, 2, 16, 0.3, **options)


DROPPING = {
    "attention": row(
        lambda x, a: a(x, x, x, need_weights=False)[0],
        3,
        8,
        modules=[nn.MultiheadAttention(8, 2, 0.3, batch_first=True)],
    ),
    "attention_places_first": row(
        lambda x, a: places_first(x, lambda q, k: a(q, k, k, key_padding_mask=padded(x))[0]),
        3,
        8,
        modules=[nn.MultiheadAttention(8, 2, 0.3)],
    ),
    "attention_weights": row(
        weighted_attention, 3, 8, modules=[nn.MultiheadAttention(8, 2, 0.3, batch_first=True)]
    ),
    "encoder": row(
        lambda x, e: e(x, src_key_padding_mask=padded(x)),
        3,
        8,
        modules=[nn.TransformerEncoder(encoder(batch_first=True), 2, enable_nested_tensor=False)],
    ),
    "decoder_places_first": row(
        places_first, 3, 8, modules=[nn.TransformerDecoderLayer(8, 2, 16, 0.3)]
    ),
    "transformer": row(
        lambda x, t: t(x, x * 0.5, tgt_mask=later(x), tgt_is_causal=True),
        3,
        8,
        modules=[nn.Transformer(8, 2, 1, 1, 16, 0.3, batch_first=True)],
    ),
    "lstm": row(
        lambda x, r: r(x)[0] + r(x)[1][1].sum((0, 2))[:, None, None],
        3,
        5,
        modules=[nn.LSTM(5, 4, 2, dropout=0.5, batch_first=True, bidirectional=True)],
    ),
    "gru_places_first": row(
        lambda x, r: r(x.transpose(0, 1))[0].transpose(0, 1),
        3,
        5,
        modules=[nn.GRU(5, 4, 3, dropout=0.5)],
    ),
    "joined_heads": row(joined_heads, 3, 8),
}


@pytest.mark.parametrize("name", DROPPING)
def test_dropout_is_of_samples_in_every_layout(tmp_path, name):
    """Compared with the interpreter, which uses the same masks and PyTorch's gradients."""
    pair = beside({name: DROPPING[name]}, tmp_path)
    loss, gradients = pair.interpreted()
    compiled, ours = pair.ours()
    assert compiled == pytest.approx(loss.item(), rel=1e-10, abs=1e-12)
    for parameter, gradient in gradients.items():
        torch.testing.assert_close(ours[parameter], gradient, rtol=1e-9, atol=1e-11)
    pair.model.eval()
    assert pair.theirs()[0] != pytest.approx(loss.item(), rel=1e-3)


class Dropping(nn.Module):
    """Dropout of values whose last axis is the batch, and of attention weights."""

    def __init__(self):
        super().__init__()
        self.linear, self.dropout = nn.Linear(6, 6), nn.Dropout(0.25)

    def forward(self, x):
        x = self.dropout(self.linear(x))
        y = f.dropout(x.transpose(0, 1), 0.5).transpose(0, 1)
        heads = x.view(*x.shape[:2], 2, 3).transpose(1, 2)
        out = f.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.4, is_causal=True)
        return y + out.transpose(1, 2).reshape(x.shape)


def test_dropout_is_the_interpreters_by_the_same_masks(tmp_path):
    torch.manual_seed(0)
    batch = (torch.randn(16, 5, 6).double(),)
    pair = Beside(Dropping().double(), batch, step, tmp_path)
    loss, gradients = pair.interpreted()
    compiled, ours = pair.ours()
    assert abs(compiled - loss.item()) <= 1e-12 * abs(compiled)
    for name, gradient in gradients.items():
        torch.testing.assert_close(ours[name], gradient, rtol=1e-11, atol=1e-13)
    (kept,) = (op for op in pair.recording.operators if op.keywords == {"p": 0.25})
    found = interpret(pair.recording, [kept.arguments[0], kept.results[0]])
    x, out = found[kept.arguments[0]], found[kept.results[0]]
    torch.testing.assert_close(out[out != 0], x[out != 0] / 0.75, rtol=1e-15, atol=0)
    share = (out != 0).double().mean().item()
    assert abs(share - 0.75) < 3 * (0.75 * 0.25 / out.numel()) ** 0.5


def test_a_value_before_the_step_has_the_steps_masks(tmp_path):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    batch, read = (torch.randn(8, 6),), []

    def reading(model, batch):
        loss = step(model, batch)
        read.append(loss.item())
        return loss

    pair = Beside(model, batch, reading, tmp_path)
    assert pair.ours()[0] == pytest.approx(read[0], rel=1e-6)
