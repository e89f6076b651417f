"""BERT: blocks of attention both ways and a feed-forward network, trained by two tasks.

Tokens that were masked are to be found, and whether the second segment follows the first one.

Source: Devlin et al. 2018, BERT, section 3; details as in Hugging Face's BertForPreTraining
"""

from typing import Any

import numpy as np
from params import Model, Params

from csrun import nn
from csrun.estimator import CSEstimatorSpec

EPSILON = 1e-12
SMALL = nn.initializers.normal(0.02)
SEGMENTS = 2
UNSEEN = -1e9  # added to the score of what is padding: its share of attention is exactly 0


def model_fn(
    features: dict[str, nn.Tensor],
    labels: dict[str, nn.Tensor],
    mode: str,
    params: Params,
) -> CSEstimatorSpec:
    """Loss, training and accuracies of the network; the loss is the sum of both tasks', in nats.

    Shapes: features input_ids and segment_ids [B, T], mask [B, T] 1.0 where there is a token, 0.0
    in padding; labels masked_lm_labels [B, T], -100 where nothing is to be found, next_sentence [B]
    """
    logits, next_logits = bert(features, params.model, mode)
    token, next_sentence = nn.argmax(logits), nn.argmax(next_logits)
    if mode == nn.PREDICT:
        found = {"token": token, "next_sentence": next_sentence}
        return CSEstimatorSpec(mode=mode, predictions=found)
    masked, follows = labels["masked_lm_labels"], labels["next_sentence"]
    loss = nn.softmax_cross_entropy(logits, masked)
    loss = loss + nn.softmax_cross_entropy(next_logits, follows)
    return CSEstimatorSpec(
        mode=mode,
        loss=loss,
        train_op=params.optimizer.minimize(loss) if mode == nn.TRAIN else None,
        host_call=(metrics, [masked, token, follows, next_sentence]),
    )


def metrics(
    masked: np.ndarray, token: np.ndarray, follows: np.ndarray, next_sentence: np.ndarray
) -> dict[str, Any]:
    """What the host computes from the values of a step."""
    return {
        "masked_accuracy": nn.metrics.accuracy(masked, token),
        "next_sentence_accuracy": nn.metrics.accuracy(follows, next_sentence),
    }


def bert(features: dict[str, nn.Tensor], model: Model, mode: str) -> tuple[nn.Tensor, nn.Tensor]:
    """Logits of each token, and of whether the second segment follows the first one.

    Shapes: [B, T] -> [B, T, V], [B, 2]
    """
    dropout = model.dropout if mode == nn.TRAIN else 0.0
    words = nn.Embedding(model.vocabulary, model.hidden_size, name="embeddings/word")
    x = words(features["input_ids"])  # [B, T, D]
    x = nn.PositionEmbedding(model.max_position_embeddings, name="embeddings/position")(x)
    segments = nn.Embedding(SEGMENTS, model.hidden_size, name="embeddings/segment")
    x = x + segments(features["segment_ids"])
    x = dropped(nn.LayerNorm(EPSILON, name="embeddings/norm")(x), dropout)
    mask = (1.0 - features["mask"])[:, None, None, :] * UNSEEN  # [B, 1, 1, T]
    for number in range(model.num_hidden_layers):
        with nn.scope("encoder"), nn.scope(number):
            x = block(x, mask, model, dropout)
    with nn.scope("pooler"):
        first = dense(model.hidden_size, "tanh", "dense")(x[:, 0])
    with nn.scope("next_sentence"):
        next_logits = dense(2, None, "dense")(dropped(first, dropout))
    with nn.scope("masked_lm"):
        x = dense(model.hidden_size, "gelu", "dense")(x)
        x = nn.LayerNorm(EPSILON, name="norm")(x)
        return nn.Bias(name="out")(words.attend(x)), next_logits


def block(x: nn.Tensor, mask: nn.Tensor, model: Model, dropout: float) -> nn.Tensor:
    """norm(x + attention(x)), then norm(x + feed-forward(x)).

    Shapes: [B, T, D], mask [B, 1, 1, T] -> [B, T, D]
    """
    attention = nn.MultiHeadAttention(
        model.num_heads, kernel_initializer=SMALL, output_initializer=SMALL, name="attention"
    )
    x = nn.LayerNorm(EPSILON, name="attention_norm")(x + dropped(attention(x, mask), dropout))
    h = dense(model.intermediate_size, "gelu", "up")(x)
    h = dense(model.hidden_size, None, "down")(h)
    return nn.LayerNorm(EPSILON, name="norm")(x + dropped(h, dropout))


def dense(units: int, activation: str | None, name: str) -> nn.Dense:
    """A layer with the first values of all of BERT's."""
    return nn.Dense(units, activation, kernel_initializer=SMALL, name=name)


def dropped(x: nn.Tensor, rate: float) -> nn.Tensor:
    """x, some of its values 0 in training."""
    return nn.Dropout(rate)(x) if rate else x
