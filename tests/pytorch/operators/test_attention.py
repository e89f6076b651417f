"""Attention, and PyTorch's transformer layers."""

import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_rows import check_exact, check_near, row, with_table  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


def self_attention(x, attention, **options):
    return attention(x, x, x, need_weights=False, **options)[0]


def masked_attention(x, w):
    heads = x.view(4, 1, 3, 6)
    added = torch.tensor([[0.0, -1e4, 0.5]] * 3).double()
    out = f.scaled_dot_product_attention(heads, heads * w, heads + w, attn_mask=added)
    seen = torch.ones(3, 3, dtype=torch.bool).tril()
    return out[:, 0] + f.scaled_dot_product_attention(x, x, x * w, attn_mask=seen, scale=0.3)


def heads(x, count):
    return x.view(len(x), x.shape[1], count, -1).transpose(1, 2)


def grouped(x):
    q, kv = heads(x, 4), heads(x[..., :4], 2)
    return f.scaled_dot_product_attention(q, kv, kv, is_causal=True, enable_gqa=True)


def checkpointed(x, attention):
    return checkpoint(self_attention, x, attention, use_reentrant=False)


class TrainedMask(nn.Module):
    def __init__(self):
        super().__init__()
        self.mask = nn.Parameter(torch.randn(3, 3))

    def forward(self, x):
        x = x[:, None]
        return f.scaled_dot_product_attention(x, x, x, attn_mask=self.mask)


EXACT = {
    **with_table(masked_attention),
    "encoder": row(
        lambda x, e: e(x),
        5,
        8,
        modules=[nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)],
    ),
}


def test_rows_are_pytorchs(tmp_path):
    check_exact(EXACT, tmp_path)


NEAR = {
    "checkpointed": row(
        checkpointed, 3, 8, modules=[nn.MultiheadAttention(8, 2, batch_first=True)]
    ),
    "attention": row(self_attention, 3, 8, modules=[nn.MultiheadAttention(8, 2, batch_first=True)]),
    "attention_masked": row(
        lambda x, a: self_attention(
            x, a, attn_mask=nn.Transformer.generate_square_subsequent_mask(3).to(x)
        ),
        3,
        8,
        modules=[nn.MultiheadAttention(8, 2, batch_first=True)],
    ),
    "attention_padded": row(
        lambda x, a: self_attention(
            x, a, key_padding_mask=torch.tensor([[False, False, True]]).expand(len(x), -1)
        ),
        3,
        8,
        modules=[nn.MultiheadAttention(8, 2, batch_first=True)],
    ),
    "attention_weights": row(
        lambda x, a: a(x, x, x)[0], 3, 8, modules=[nn.MultiheadAttention(8, 2, batch_first=True)]
    ),
    "attention_grouped": row(grouped, 3, 8),
    "attention_trained_mask": row(lambda x, a: a(x), 3, 8, modules=[TrainedMask()]),
    "encoder_first": row(
        lambda x, e: e(
            x, is_causal=True, src_mask=nn.Transformer.generate_square_subsequent_mask(3).to(x)
        ),
        3,
        8,
        modules=[
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        ],
    ),
    "decoder": row(
        lambda x, d: d(x, x * 0.5),
        3,
        8,
        modules=[nn.TransformerDecoderLayer(8, 2, 16, dropout=0.0, batch_first=True)],
    ),
}


def test_rows_are_pytorchs_to_rounding(tmp_path):
    check_near(NEAR, tmp_path)
