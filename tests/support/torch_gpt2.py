"""GPT-2 in plain PyTorch, over csrun's tensors by name: the oracle of the reference model."""

from typing import Any

import numpy as np
from support.torch_models import TorchModel


class TorchGpt2(TorchModel):
    """GPT-2's forward pass."""

    def logits(self, tokens: np.ndarray) -> Any:
        """Shapes: [B, T] -> [B, T, V]"""
        w = self.weights
        ids = self._torch.from_numpy(tokens).long()
        x = self._dropped(w["wte/embeddings"][ids] + w["wpe/embeddings"][: ids.shape[1]])
        for number in range(self._model.num_hidden_layers):
            x = self._block(x, f"h/{number}")
        return self._norm("ln_f", x) @ w["wte/embeddings"].T

    def _block(self, x: Any, name: str) -> Any:
        batch, length, _ = x.shape
        joined = self._dense(f"{name}/attn/qkv", self._norm(f"{name}/ln_1", x))
        heads = joined.view(batch, length, 3, self._model.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = self._attended(*heads, is_causal=True)
        attended = self._dense(f"{name}/attn/out", attended.transpose(1, 2).reshape(x.shape))
        x = x + self._dropped(attended)
        h = self._dense(f"{name}/mlp/up", self._norm(f"{name}/ln_2", x))
        h = self._functional.gelu(h, approximate="tanh")
        return x + self._dropped(self._dense(f"{name}/mlp/down", h))
