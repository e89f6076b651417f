"""GPT-2 in plain PyTorch, over csrun's tensors by name: the oracle of the reference model."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

DECAYED = 0.01


class TorchGpt2:
    """Weights of float32 or float64, the loss and gradients of a batch, AdamW's steps."""

    def __init__(self, torch: Any, weights: Mapping[str, np.ndarray], model: Any) -> None:
        self._torch, self._functional, self._model = torch, torch.nn.functional, model
        self.weights = {
            name: torch.from_numpy(value.copy()).requires_grad_() for name, value in weights.items()
        }

    def logits(self, tokens: np.ndarray) -> Any:
        """Shapes: [B, T] -> [B, T, V]"""
        w = self.weights
        ids = self._torch.from_numpy(tokens).long()
        x = w["wte/embeddings"][ids] + w["wpe/embeddings"][: ids.shape[1]]
        for number in range(self._model.num_hidden_layers):
            x = self._block(x, f"h/{number}")
        return self._norm("ln_f", x) @ w["wte/embeddings"].T

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
        batch, length, _ = x.shape
        joined = self._dense(f"{name}/attn/qkv", self._norm(f"{name}/ln_1", x))
        heads = joined.view(batch, length, 3, self._model.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = self._functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self._dense(f"{name}/attn/out", attended.transpose(1, 2).reshape(x.shape))
        h = self._dense(f"{name}/mlp/up", self._norm(f"{name}/ln_2", x))
        h = self._functional.gelu(h, approximate="tanh")
        return x + self._dense(f"{name}/mlp/down", h)

    def _dense(self, name: str, x: Any) -> Any:
        kernel, bias = self.weights[f"{name}/kernel"], self.weights[f"{name}/bias"]
        return self._functional.linear(x, kernel.T, bias)

    def _norm(self, name: str, x: Any) -> Any:
        gamma, beta = self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]
        return self._functional.layer_norm(x, gamma.shape, gamma, beta, 1e-5)
