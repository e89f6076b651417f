"""GPT-2: blocks of causal attention and a feed-forward network, with a tied output layer.

Source: Radford et al. 2019, Language Models are Unsupervised Multitask Learners, section 2.3
"""

from math import sqrt
from typing import Any

import msgspec
import numpy as np
from params import Model, Params

from csrun import nn
from csrun.estimator import CSEstimatorSpec

EPSILON = 1e-5
INITIAL = 0.02


def model_fn(features: nn.Tensor, labels: nn.Tensor, mode: str, params: Params) -> CSEstimatorSpec:
    """Model function: loss per token in nats, and training.

    Shapes: features [B, T] token ids, labels [B, T] next token ids
    """
    logits = gpt2(features, params.model, mode)
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


def gpt2(tokens: nn.Tensor, model: Model, mode: str) -> nn.Tensor:
    """Logits of the next token at each position.

    Shapes: tokens [B, T] -> [B, T, V]
    """
    model = of_mode(model, mode)
    table = nn.Embedding(model.vocabulary, model.hidden_size, name="wte")
    x = table(tokens)  # [B, T, D]
    x = nn.PositionEmbedding(model.max_position_embeddings, name="wpe")(x)
    x = dropped(x, model.dropout)
    for number in range(model.num_hidden_layers):
        with nn.scope("h"), nn.scope(number):
            x = block(x, model)
    return table.attend(nn.LayerNorm(EPSILON, name="ln_f")(x))


def block(x: nn.Tensor, model: Model) -> nn.Tensor:
    """x + attention(norm(x)), then x + feed-forward(norm(x)).

    Shapes: [B, T, D] -> [B, T, D]
    """
    small = nn.initializers.normal(INITIAL)
    into_residual = nn.initializers.normal(INITIAL / sqrt(2 * model.num_hidden_layers))
    attention = nn.MultiHeadAttention(
        model.num_heads,
        is_causal=True,
        kernel_initializer=small,
        output_initializer=into_residual,
        name="attn",
        dropout=model.attention_dropout,
    )
    x = x + dropped(attention(nn.LayerNorm(EPSILON, name="ln_1")(x)), model.dropout)
    h = nn.LayerNorm(EPSILON, name="ln_2")(x)
    with nn.scope("mlp"):
        h = nn.Dense(4 * model.hidden_size, "gelu_tanh", kernel_initializer=small, name="up")(h)
        h = nn.Dense(model.hidden_size, kernel_initializer=into_residual, name="down")(h)
    return x + dropped(h, model.dropout)


def of_mode(model: Model, mode: str) -> Model:
    """Return the sizes of the model, with dropout in training only."""
    if mode == nn.TRAIN:
        return model
    return msgspec.structs.replace(model, dropout=0.0, attention_dropout=0.0)


def dropped(x: nn.Tensor, rate: float) -> nn.Tensor:
    """Apply dropout to x, in training."""
    return nn.Dropout(rate)(x) if rate else x
