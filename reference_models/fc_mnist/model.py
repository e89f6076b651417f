"""fc_mnist: a stack of fully connected layers that classifies handwritten digits."""

from typing import Any

import numpy as np
from params import Params

from csrun import nn
from csrun.estimator import CSEstimatorSpec

CLASSES = 10


def model_fn(features: nn.Tensor, labels: nn.Tensor, mode: str, params: Params) -> CSEstimatorSpec:
    """Model function: loss, training and accuracy.

    Shapes: features [B, 28, 28], labels [B]
    """
    hidden = nn.flatten(features)  # [B, 784]
    for number, units in enumerate(params.model.hidden_sizes):
        hidden = nn.Dense(units, activation="relu", name=f"fc_{number}")(hidden)
    logits = nn.Dense(CLASSES, name="fc_out")(hidden)  # [B, 10]
    digits = nn.argmax(logits)  # [B]
    if mode == nn.PREDICT:
        return CSEstimatorSpec(mode=mode, predictions={"digit": digits})
    loss = nn.softmax_cross_entropy(logits, labels)
    return CSEstimatorSpec(
        mode=mode,
        loss=loss,
        train_op=params.optimizer.minimize(loss) if mode == nn.TRAIN else None,
        host_call=(metrics, [labels, digits]),
    )


def metrics(labels: np.ndarray, predictions: np.ndarray) -> dict[str, Any]:
    """Compute the metrics of a step on the host, from its outputs."""
    return {"accuracy": nn.metrics.accuracy(labels, predictions)}
