"""Base of the reference models' oracles: weights by csrun's names, a step, a training."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

DECAYED = 0.01


class TorchModel:
    """Weights of float32 or float64, the loss and gradients of a batch, AdamW's steps.

    It is in training: where the model has dropout, each pass has masks of its own.
    """

    epsilon = 1e-5  # of its norms

    def __init__(self, torch: Any, weights: Mapping[str, np.ndarray], model: Any) -> None:
        self._torch, self._functional, self._model = torch, torch.nn.functional, model
        self.weights = {
            name: torch.from_numpy(value.copy()).requires_grad_() for name, value in weights.items()
        }

    def logits(self, features: Any) -> Any:
        """Outputs that the loss takes."""
        raise NotImplementedError

    def loss(self, features: Any, labels: Any) -> Any:
        """The mean over tokens."""
        logits, wanted = self.logits(features), self._torch.from_numpy(labels).long()
        return self._functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())

    def step(self, features: Any, labels: Any) -> tuple[float, dict[str, np.ndarray]]:
        """Loss and gradients."""
        loss = self.loss(features, labels)
        slopes = self._torch.autograd.grad(loss, list(self.weights.values()))
        return loss.item(), {n: s.numpy() for n, s in zip(self.weights, slopes, strict=True)}

    def train(
        self,
        batches: Iterable[tuple[Any, Any]],
        rate: float | Callable[[int], float],
        clip: float,
        decay: float = DECAYED,
        spared: str = "$^",
        betas: tuple[float, float] = (0.9, 0.999),
    ) -> list[float]:
        """The losses of AdamW with clipping by global norm.

        rate: a number, or that of each step; spared: the weights that do not decay, a pattern.
        """
        leaves = list(self.weights.values())
        free = [leaf for name, leaf in self.weights.items() if re.search(spared, name)]
        others = [leaf for name, leaf in self.weights.items() if not re.search(spared, name)]
        groups = [{"params": others}, {"params": free, "weight_decay": 0.0}]
        optimizer = self._torch.optim.AdamW(groups, 0.0, betas, weight_decay=decay)
        losses = []
        for step, (features, labels) in enumerate(batches):
            for group in optimizer.param_groups:
                group["lr"] = rate(step) if callable(rate) else rate
            optimizer.zero_grad()
            loss = self.loss(features, labels)
            loss.backward()
            self._torch.nn.utils.clip_grad_norm_(leaves, clip)
            optimizer.step()
            losses.append(loss.item())
        return losses

    def _attended(self, query: Any, key: Any, value: Any, **options: Any) -> Any:
        options["dropout_p"] = self._model.attention_dropout
        return self._functional.scaled_dot_product_attention(query, key, value, **options)

    def _dropped(self, x: Any) -> Any:
        return self._functional.dropout(x, self._model.dropout)

    def _dense(self, name: str, x: Any) -> Any:
        kernel, bias = self.weights[f"{name}/kernel"], self.weights[f"{name}/bias"]
        return self._functional.linear(x, kernel.T, bias)

    def _norm(self, name: str, x: Any) -> Any:
        gamma, beta = self.weights[f"{name}/gamma"], self.weights[f"{name}/beta"]
        return self._functional.layer_norm(x, gamma.shape, gamma, beta, self.epsilon)
