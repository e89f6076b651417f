"""BERT: blocks of bidirectional attention and a feed-forward network, trained by two tasks.

The tasks are to predict masked tokens, and whether the second segment follows the first one. With
`model.classes` a head classifies texts instead.

Source: Devlin et al. 2018, BERT, section 3; details as in Hugging Face's BertForPreTraining and
BertForSequenceClassification
"""

from typing import Any

import msgspec
import numpy as np
from params import Model, Params

from csrun import nn
from csrun.estimator import CSEstimatorSpec

EPSILON = 1e-12
SMALL = nn.initializers.normal(0.02)
SEGMENTS = 2


def model_fn(
    features: dict[str, nn.Tensor],
    labels: Any,
    mode: str,
    params: Params,
) -> CSEstimatorSpec:
    """Model function: pre-training, or classification of texts if the model has classes."""
    task = classifying if params.model.classes else pretraining
    return task(features, labels, mode, params)


def pretraining(
    features: dict[str, nn.Tensor], labels: dict[str, nn.Tensor], mode: str, params: Params
) -> CSEstimatorSpec:
    """Pre-training by both tasks; the loss is their sum, in nats.

    Shapes: features input_ids and segment_ids [B, T], mask [B, T] true at tokens;
    labels masked_lm_labels [B, T], -100 at tokens that are not masked, next_sentence [B]
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


def classifying(
    features: dict[str, nn.Tensor], labels: nn.Tensor, mode: str, params: Params
) -> CSEstimatorSpec:
    """Classification: loss, training and accuracy.

    Shapes: features as above, labels [B] classes
    """
    logits = classified(features, params.model, mode)
    found = nn.argmax(logits)
    if mode == nn.PREDICT:
        return CSEstimatorSpec(mode=mode, predictions={"class": found})
    loss = nn.softmax_cross_entropy(logits, labels)
    return CSEstimatorSpec(
        mode=mode,
        loss=loss,
        train_op=params.optimizer.minimize(loss) if mode == nn.TRAIN else None,
        host_call=(class_metrics, [labels, found]),
    )


def class_metrics(labels: np.ndarray, found: np.ndarray) -> dict[str, Any]:
    """Compute the metrics of a step on the host, from its outputs."""
    return {"accuracy": nn.metrics.accuracy(labels, found)}


def metrics(
    masked: np.ndarray, token: np.ndarray, follows: np.ndarray, next_sentence: np.ndarray
) -> dict[str, Any]:
    """Compute the metrics of a step on the host, from its outputs."""
    return {
        "masked_accuracy": nn.metrics.accuracy(masked, token),
        "next_sentence_accuracy": nn.metrics.accuracy(follows, next_sentence),
    }


def bert(features: dict[str, nn.Tensor], model: Model, mode: str) -> tuple[nn.Tensor, nn.Tensor]:
    """Logits of the masked tokens, and of whether the second segment follows the first one.

    Shapes: [B, T] -> [B, T, V], [B, 2]
    """
    model = of_mode(model, mode)
    words = word_table(model)
    x = encoded(features, words, model)
    first = pooled(x, model)
    with nn.scope("next_sentence"):
        next_logits = dense(2, None, "dense")(first)
    with nn.scope("masked_lm"):
        x = dense(model.hidden_size, "gelu", "dense")(x)
        x = nn.LayerNorm(EPSILON, name="norm")(x)
        return nn.Bias(name="out")(words.attend(x)), next_logits


def classified(features: dict[str, nn.Tensor], model: Model, mode: str) -> nn.Tensor:
    """Logits of the classes.

    Shapes: [B, T] -> [B, classes]
    """
    model = of_mode(model, mode)
    x = encoded(features, word_table(model), model)
    return dense(model.classes, None, "classifier")(pooled(x, model))


def word_table(model: Model) -> nn.Embedding:
    """Create the token embedding."""
    return nn.Embedding(model.vocabulary, model.hidden_size, name="embeddings/word")


def encoded(features: dict[str, nn.Tensor], words: nn.Embedding, model: Model) -> nn.Tensor:
    """Encode the tokens by the blocks.

    Shapes: [B, T] -> [B, T, D]
    """
    x = words(features["input_ids"])  # [B, T, D]
    x = nn.PositionEmbedding(model.max_position_embeddings, name="embeddings/position")(x)
    segments = nn.Embedding(SEGMENTS, model.hidden_size, name="embeddings/segment")
    x = x + segments(features["segment_ids"])
    x = dropped(nn.LayerNorm(EPSILON, name="embeddings/norm")(x), model.dropout)
    mask = features["mask"][:, None, None, :]  # [B, 1, 1, T]
    for number in range(model.num_hidden_layers):
        with nn.scope("encoder"), nn.scope(number):
            x = block(x, mask, model)
    return x


def pooled(x: nn.Tensor, model: Model) -> nn.Tensor:
    """Representation of the sample, from its first token.

    Shapes: [B, T, D] -> [B, D]
    """
    with nn.scope("pooler"):
        first = dense(model.hidden_size, "tanh", "dense")(x[:, 0])
    return dropped(first, model.dropout)


def block(x: nn.Tensor, mask: nn.Tensor, model: Model) -> nn.Tensor:
    """norm(x + attention(x)), then norm(x + feed-forward(x)).

    Shapes: [B, T, D], mask [B, 1, 1, T] -> [B, T, D]
    """
    attention = nn.MultiHeadAttention(
        model.num_heads,
        kernel_initializer=SMALL,
        output_initializer=SMALL,
        name="attention",
        dropout=model.attention_dropout,
    )
    x = nn.LayerNorm(EPSILON, name="attention_norm")(x + dropped(attention(x, mask), model.dropout))
    h = dense(model.intermediate_size, "gelu", "up")(x)
    h = dense(model.hidden_size, None, "down")(h)
    return nn.LayerNorm(EPSILON, name="norm")(x + dropped(h, model.dropout))


def dense(units: int, activation: str | None, name: str) -> nn.Dense:
    """Dense layer with BERT's initialization."""
    return nn.Dense(units, activation, kernel_initializer=SMALL, name=name)


def of_mode(model: Model, mode: str) -> Model:
    """Return the sizes of the model, with dropout in training only."""
    if mode == nn.TRAIN:
        return model
    return msgspec.structs.replace(model, dropout=0.0, attention_dropout=0.0)


def dropped(x: nn.Tensor, rate: float) -> nn.Tensor:
    """Apply dropout to x, in training."""
    return nn.Dropout(rate)(x) if rate else x
