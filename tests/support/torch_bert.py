"""BERT in plain PyTorch, over csrun's tensors by name: the oracle of the reference model."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

DECAYED = 0.01

Batch = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


class TorchBert:
    """Weights of float32 or float64, the loss and gradients of a batch, AdamW's steps."""

    def __init__(self, torch: Any, weights: Mapping[str, np.ndarray], model: Any) -> None:
        self._torch, self._functional, self._model = torch, torch.nn.functional, model
        self.weights = {
            name: torch.from_numpy(value.copy()).requires_grad_() for name, value in weights.items()
        }

    def logits(self, features: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
        """Shapes: [B, T] -> [B, T, V], [B, 2]"""
        w, given = self.weights, {n: self._torch.from_numpy(v) for n, v in features.items()}
        ids, segments = given["input_ids"].long(), given["segment_ids"].long()
        x = w["embeddings/word/embeddings"][ids] + w["embeddings/segment/embeddings"][segments]
        x = self._norm("embeddings/norm", x + w["embeddings/position/embeddings"][: ids.shape[1]])
        seen = (given["mask"] > 0)[:, None, None, :]
        for number in range(self._model.num_hidden_layers):
            x = self._block(x, seen, f"encoder/{number}")
        first = self._dense("pooler/dense", x[:, 0]).tanh()
        h = self._functional.gelu(self._dense("masked_lm/dense", x))
        h = self._norm("masked_lm/norm", h) @ w["embeddings/word/embeddings"].T
        return h + w["masked_lm/out/bias"], self._dense("next_sentence/dense", first)

    def loss(self, features: Mapping[str, np.ndarray], labels: Mapping[str, np.ndarray]) -> Any:
        """The mean over the tokens to be found, and that over samples."""
        tokens, follows = self.logits(features)
        wanted = {name: self._torch.from_numpy(value).long() for name, value in labels.items()}
        of = self._functional.cross_entropy
        masked = of(tokens.flatten(0, 1), wanted["masked_lm_labels"].flatten())
        return masked + of(follows, wanted["next_sentence"])

    def step(self, batch: Batch) -> tuple[float, dict[str, np.ndarray]]:
        """Loss and gradients."""
        loss = self.loss(*batch)
        slopes = self._torch.autograd.grad(loss, list(self.weights.values()))
        return loss.item(), {n: s.numpy() for n, s in zip(self.weights, slopes, strict=True)}

    def train(self, batches: Iterable[Batch], rate: float, clip: float) -> list[float]:
        """The losses of AdamW with clipping by global norm."""
        leaves = list(self.weights.values())
        optimizer = self._torch.optim.AdamW(leaves, rate, weight_decay=DECAYED)
        losses = []
        for batch in batches:
            optimizer.zero_grad()
            loss = self.loss(*batch)
            loss.backward()
            self._torch.nn.utils.clip_grad_norm_(leaves, clip)
            optimizer.step()
            losses.append(loss.item())
        return losses

    def _block(self, x: Any, seen: Any, name: str) -> Any:
        batch, length, _ = x.shape
        joined = self._dense(f"{name}/attention/qkv", x)
        heads = joined.view(batch, length, 3, self._model.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = self._functional.scaled_dot_product_attention(*heads, attn_mask=seen)
        attended = attended.transpose(1, 2).reshape(x.shape)
        x = self._norm(f"{name}/attention_norm", x + self._dense(f"{name}/attention/out", attended))
        h = self._functional.gelu(self._dense(f"{name}/up", x))
        return self._norm(f"{name}/norm", x + self._dense(f"{name}/down", h))

    def _dense(self, name: str, x: Any) -> Any:
        return x @ self.weights[f"{name}/kernel"] + self.weights[f"{name}/bias"]

    def _norm(self, name: str, x: Any) -> Any:
        gamma, beta = self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]
        return self._functional.layer_norm(x, gamma.shape, gamma, beta, 1e-12)
