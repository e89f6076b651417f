"""GPT-J: blocks whose attention and feed-forward network share a norm; rotary positions.

Source: Wang and Komatsuzaki 2021, GPT-J-6B: 6B JAX-Based Transformer; the positions: Su et al.
2021, RoFormer, section 3.2
"""

from typing import Any

import msgspec
import numpy as np
from params import Model, Params

from csrun import nn
from csrun.estimator import CSEstimatorSpec

EPSILON = 1e-5
INITIAL = nn.initializers.normal(0.02)


def model_fn(features: nn.Tensor, labels: nn.Tensor, mode: str, params: Params) -> CSEstimatorSpec:
    """Model function: loss per token in nats, and training.

    Shapes: features [B, T] token ids, labels [B, T] next token ids
    """
    logits = gptj(features, params.model, mode)
    if mode == nn.PREDICT:
        return CSEstimatorSpec(mode=mode, predictions={"token": nn.argmax(logits)})
    loss = nn.softmax_cross_entropy(logits, labels)
    return CSEstimatorSpec(
        mode=mode,
        loss=loss,
        train_op=params.optimizer.minimize(loss) if mode == nn.TRAIN else None,
        host_call=(metrics, [loss, labels]) if mode == nn.EVAL else None,
    )


def metrics(loss: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """Compute the metrics of a step on the host, from its outputs."""
    return {"perplexity": nn.metrics.perplexity(loss, labels)}


def gptj(tokens: nn.Tensor, model: Model, mode: str) -> nn.Tensor:
    """Logits of the next token at each position.

    Shapes: tokens [B, T] -> [B, T, V]
    """
    model = of_mode(model, mode)
    x = nn.Embedding(model.vocabulary, model.hidden_size, name="wte")(tokens)  # [B, T, D]
    x = dropped(x, model.dropout)
    for number in range(model.num_hidden_layers):
        with nn.scope("h"), nn.scope(number):
            x = block(x, model)
    x = nn.LayerNorm(EPSILON, name="ln_f")(x)
    return nn.Dense(model.vocabulary, kernel_initializer=INITIAL, name="lm_head")(x)


def block(x: nn.Tensor, model: Model) -> nn.Tensor:
    """x + attention(norm(x)) + feed-forward(norm(x)), one norm for both.

    Shapes: [B, T, D] -> [B, T, D]
    """
    h = nn.LayerNorm(EPSILON, name="ln_1")(x)
    with nn.scope("attn"):
        attended = attention(h, model)
    with nn.scope("mlp"):
        up = nn.Dense(4 * model.hidden_size, "gelu_tanh", kernel_initializer=INITIAL, name="up")(h)
        down = nn.Dense(model.hidden_size, kernel_initializer=INITIAL, name="down")(up)
    return x + dropped(attended, model.dropout) + dropped(down, model.dropout)


def attention(x: nn.Tensor, model: Model) -> nn.Tensor:
    """Causal attention; the first `rotary_dim` values of queries and keys encode the position.

    Shapes: [B, T, D] -> [B, T, D]
    """
    query, key, value = (heads(projected(x, name), model.num_heads) for name in "qkv")
    query, key = (nn.rotary_embedding(part, model.rotary_dim, axis=1) for part in (query, key))
    by_head = (nn.transpose(part, (0, 2, 1, 3)) for part in (query, key, value))  # [B, H, T, E]
    attended = nn.scaled_dot_product_attention(
        *by_head, is_causal=True, dropout=model.attention_dropout
    )
    return projected(nn.reshape(nn.transpose(attended, (0, 2, 1, 3)), x.shape), "out")


def projected(x: nn.Tensor, name: str) -> nn.Tensor:
    """Multiply x by a square matrix."""
    return nn.Dense(x.shape[-1], use_bias=False, kernel_initializer=INITIAL, name=name)(x)


def heads(x: nn.Tensor, count: int) -> nn.Tensor:
    """Shapes: [B, T, D] -> [B, T, H, E]"""
    return nn.reshape(x, (*x.shape[:2], count, -1))


def of_mode(model: Model, mode: str) -> Model:
    """Return the sizes of the model, with dropout in training only."""
    if mode == nn.TRAIN:
        return model
    return msgspec.structs.replace(model, dropout=0.0, attention_dropout=0.0)


def dropped(x: nn.Tensor, rate: float) -> nn.Tensor:
    """Apply dropout to x, in training."""
    return nn.Dropout(rate)(x) if rate else x
