"""GPT-J in plain PyTorch, over csrun's tensors by name: the oracle of the reference model."""

from typing import Any

import numpy as np
from support.torch_models import TorchModel


class TorchGptJ(TorchModel):
    """GPT-J's forward pass."""

    def logits(self, tokens: np.ndarray) -> Any:
        """Shapes: [B, T] -> [B, T, V]"""
        w = self.weights
        x = self._dropped(w["wte/embeddings"][self._torch.from_numpy(tokens).long()])
        for number in range(self._model.num_hidden_layers):
            x = self._block(x, f"h/{number}")
        return self._dense("lm_head", self._norm("ln_f", x))

    def _block(self, x: Any, name: str) -> Any:
        h = self._norm(f"{name}/ln_1", x)
        fed = self._functional.gelu(self._dense(f"{name}/mlp/up", h), approximate="tanh")
        attended, fed = self._attention(h, f"{name}/attn"), self._dense(f"{name}/mlp/down", fed)
        return x + self._dropped(attended) + self._dropped(fed)

    def _attention(self, x: Any, name: str) -> Any:
        def heads(part: str) -> Any:
            projected = x @ self.weights[f"{name}/{part}/kernel"]
            return projected.unflatten(-1, (self._model.num_heads, -1)).transpose(1, 2)

        query, key = self._turned(heads("q")), self._turned(heads("k"))
        attended = self._attended(query, key, heads("v"), is_causal=True)
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
