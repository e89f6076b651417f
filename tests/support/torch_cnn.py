"""cnn_mnist in plain PyTorch, over csrun's tensors by name: the oracle of the reference model."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from support.torch_models import TorchModel


class TorchCnn(TorchModel):
    """The network in training; `states` are the running statistics, which each pass moves.

    store: applied to each weight, and to each activation that csrun stores for the backward pass.
    """

    def __init__(
        self,
        torch: Any,
        weights: Mapping[str, np.ndarray],
        model: Any,
        store: Callable[[Any], Any] = lambda x: x,
    ) -> None:
        trained = {n: w for n, w in weights.items() if "running" not in n}
        super().__init__(torch, trained, model)
        self._store = store
        self.states = {n: torch.from_numpy(w.copy()) for n, w in weights.items() if "running" in n}

    def logits(self, features: np.ndarray) -> Any:
        """Shapes: [B, 28, 28] -> [B, 10]"""
        x = self._store(self._torch.from_numpy(features))[:, None]
        for number in range(len(self._model.filters)):
            x = self._block(x, f"block_{number}")
        x = self._store(self._dense("hidden", x.flatten(1)).relu())
        return self._store(self._dense("out", x))

    def _block(self, x: Any, name: str) -> Any:
        functional, w, norm = self._functional, self._stored, f"{name}/norm"
        x = self._store(functional.conv2d(x, w(f"{name}/conv/kernel"), padding=1))
        running = self.states[f"{norm}/running_mean"], self.states[f"{norm}/running_var"]
        gamma, beta = w(f"{norm}/gamma"), w(f"{norm}/beta")
        x = functional.batch_norm(x, *running, gamma, beta, True, self._model.momentum, 1e-5)
        return self._store(functional.max_pool2d(self._store(x).relu(), 2))

    def _dense(self, name: str, x: Any) -> Any:
        return x @ self._stored(f"{name}/kernel") + self._stored(f"{name}/bias")

    def _stored(self, name: str) -> Any:
        return self._store(self.weights[name])

    def loss(self, features: Any, labels: Any) -> Any:
        """The mean over samples."""
        wanted = self._torch.from_numpy(labels).long()
        return self._functional.cross_entropy(self.logits(features), wanted)
