"""BERT in plain PyTorch, over csrun's tensors by name: the oracle of the reference model."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from support.torch_models import TorchModel


class TorchBert(TorchModel):
    """BERT's forward pass."""

    epsilon = 1e-12

    def logits(self, features: Mapping[str, np.ndarray]) -> tuple[Any, Any]:
        """Shapes: [B, T] -> [B, T, V], [B, 2]"""
        w, given = self.weights, {n: self._torch.from_numpy(v) for n, v in features.items()}
        ids, segments = given["input_ids"].long(), given["segment_ids"].long()
        x = w["embeddings/word/embeddings"][ids] + w["embeddings/segment/embeddings"][segments]
        x = self._norm("embeddings/norm", x + w["embeddings/position/embeddings"][: ids.shape[1]])
        x = self._dropped(x)
        seen = given["mask"][:, None, None, :]
        for number in range(self._model.num_hidden_layers):
            x = self._block(x, seen, f"encoder/{number}")
        first = self._dropped(self._dense("pooler/dense", x[:, 0]).tanh())
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

    def _block(self, x: Any, seen: Any, name: str) -> Any:
        batch, length, _ = x.shape
        joined = self._dense(f"{name}/attention/qkv", x)
        heads = joined.view(batch, length, 3, self._model.num_heads, -1).permute(2, 0, 3, 1, 4)
        attended = self._attended(*heads, attn_mask=seen)
        attended = attended.transpose(1, 2).reshape(x.shape)
        attended = self._dropped(self._dense(f"{name}/attention/out", attended))
        x = self._norm(f"{name}/attention_norm", x + attended)
        h = self._functional.gelu(self._dense(f"{name}/up", x))
        return self._norm(f"{name}/norm", x + self._dropped(self._dense(f"{name}/down", h)))
