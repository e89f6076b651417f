"""GPT-J in plain PyTorch, over csrun's tensors by name: the oracle of the reference model."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

DECAYED = 0.01


class TorchGptJ:
    """Weights of float32 or float64, the loss and gradients of a batch, AdamW's steps."""

    def __init__(self, torch: Any, weights: Mapping[str, np.ndarray], model: Any) -> None:
        self._torch, self._functional, self._model = torch, torch.nn.functional, model
        self.weights = {
            name: torch.from_numpy(value.copy()).requires_grad_() for name, value in weights.items()
        }

    def logits(self, tokens: np.ndarray) -> Any:
        """Shapes: [B, T] -> [B, T, V]"""
        w = self.weights
        x = w["wte/embeddings"][self._torch.from_numpy(tokens).long()]
        for number in range(self._model.num_hidden_layers):
            x = self._block(x, f"h/{number}")
        return self._dense("lm_head", self._norm("ln_f", x))

    def loss(self, tokens: np.ndarray, labels: np.ndarray) -> Any:
        """The mean over tokens."""
        logits, wanted = self.logits(tokens), self._torch.from_numpy(labels).long()
        return self._functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())

    def step(self, tokens: np.ndarray, labels: np.ndarray) -> tuple[float, dict[str, np.ndarray]]:
        """Loss and gradients."""
        loss = self.loss(tokens, labels)
        slopes = self._torch.autograd.grad(loss, list(self.weights.values()))
        return loss.item(), {n: s.numpy() for n, s in zip(self.weights, slopes, strict=True)}

    def train(
        self, batches: Iterable[tuple[np.ndarray, np.ndarray]], rate: float, clip: float
    ) -> list[float]:
        """The losses of AdamW with clipping by global norm."""
        leaves = list(self.weights.values())
        optimizer = self._torch.optim.AdamW(leaves, rate, weight_decay=DECAYED)
        losses = []
        for tokens, labels in batches:
            optimizer.zero_grad()
            loss = self.loss(tokens, labels)
            loss.backward()
            self._torch.nn.utils.clip_grad_norm_(leaves, clip)
            optimizer.step()
            losses.append(loss.item())
        return losses

    def _block(self, x: Any, name: str) -> Any:
        h = self._norm(f"{name}/ln_1", x)
        fed = self._functional.gelu(self._dense(f"{name}/mlp/up", h), approximate="tanh")
        return x + self._attention(h, f"{name}/attn") + self._dense(f"{name}/mlp/down", fed)

    def _attention(self, x: Any, name: str) -> Any:
        def heads(part: str) -> Any:
            projected = x @ self.weights[f"{name}/{part}/kernel"]
            return projected.unflatten(-1, (self._model.num_heads, -1)).transpose(1, 2)

        query, key = self._turned(heads("q")), self._turned(heads("k"))
        attend = self._functional.scaled_dot_product_attention
        attended = attend(query, key, heads("v"), is_causal=True)
        return attended.transpose(1, 2).flatten(2) @ self.weights[f"{name}/out/kernel"]

    def _turned(self, x: Any) -> Any:
        """Hugging Face's form: x cos + (the other of each pair, the first's negated) sin."""
        torch, size = self._torch, self._model.rotary_dim
        inverse = 1.0 / 10000 ** (torch.arange(0, size, 2).double() / size)
        angles = torch.outer(torch.arange(x.shape[2]).double(), inverse).to(x.dtype)
        angles = angles.repeat_interleave(2, dim=-1)  # [T, rotary_dim]
        turning, kept = x[..., :size], x[..., size:]
        others = torch.stack((-turning[..., 1::2], turning[..., ::2]), dim=-1).flatten(-2)
        return torch.cat((turning * angles.cos() + others * angles.sin(), kept), dim=-1)

    def _dense(self, name: str, x: Any) -> Any:
        return x @ self.weights[f"{name}/kernel"] + self.weights[f"{name}/bias"]

    def _norm(self, name: str, x: Any) -> Any:
        gamma, beta = self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]
        return self._functional.layer_norm(x, gamma.shape, gamma, beta, 1e-5)
