"""A GPT and a BERT as users of PyTorch write them, small."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional


class Attention(nn.Module):
    def __init__(self, size: int, heads: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.qkv, self.out = nn.Linear(size, 3 * size), nn.Linear(size, size)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x [B, T, D] -> the same; causal without a mask"""
        batch, length, size = x.shape
        heads = (batch, length, self.heads, size // self.heads)
        query, key, value = (h.view(heads).transpose(1, 2) for h in self.qkv(x).split(size, 2))
        rate = self.dropout if self.training else 0.0
        out = functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, dropout_p=rate, is_causal=mask is None
        )
        return self.out(out.transpose(1, 2).contiguous().view(batch, length, size))


class Block(nn.Module):
    def __init__(self, size: int, heads: int, approximate: str = "tanh") -> None:
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.attn = Attention(size, heads)
        self.mlp = nn.Sequential(
            nn.Linear(size, 4 * size), nn.GELU(approximate=approximate), nn.Linear(4 * size, size)
        )

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        x = x + self.attn(self.ln_1(x), mask)
        return x + self.mlp(self.ln_2(x))


class Gpt(nn.Module):
    """GPT-2's form, its table tied to the output."""

    def __init__(self, vocabulary: int = 31, length: int = 12, size: int = 16) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocabulary, size), nn.Embedding(length + 2, size)
        self.h = nn.ModuleList(Block(size, heads=2) for _ in range(2))
        self.ln_f = nn.LayerNorm(size)
        self.head = nn.Linear(size, vocabulary, bias=False)
        self.head.weight = self.wte.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1]))
        for block in self.h:
            x = block(x)
        return self.head(self.ln_f(x))


class Bert(nn.Module):
    """BERT's form with a padding mask, which 0 as a token makes."""

    def __init__(self, vocabulary: int = 31, length: int = 12, size: int = 16) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, size, padding_idx=0)
        self.positions, self.kinds = nn.Embedding(length, size), nn.Embedding(2, size)
        self.register_buffer("ids", torch.arange(length)[None], persistent=False)
        self.layers = nn.ModuleList(Block(size, 2, "none") for _ in range(2))
        self.pooler, self.classes = nn.Linear(size, size), nn.Linear(size, 3)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = (tokens != 0)[:, None, None, :]
        x = self.words(tokens) + self.positions(self.ids[:, : tokens.shape[1]])
        x = x + self.kinds(torch.zeros_like(tokens))
        for layer in self.layers:
            x = layer(x, mask)
        return self.classes(torch.tanh(self.pooler(x[:, 0])))


def language_step(model: nn.Module, batch: tuple[Any, ...]) -> Any:
    """A step of a language model's loop, its gradients clipped."""
    tokens, labels = batch
    model.zero_grad()
    logits = model(tokens)
    loss = functional.cross_entropy(
        logits.view(-1, logits.size(-1)), labels.view(-1), ignore_index=-1
    )
    loss.backward()
    return loss
