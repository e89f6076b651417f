"""cnn_mnist: blocks of convolution, batch normalization and pooling that classify digits.

Source: LeCun et al. 1998, Gradient-based learning applied to document recognition, section II; the
normalization: Ioffe and Szegedy 2015, Batch Normalization
"""

from typing import Any

import numpy as np
from params import Model, Params

from csrun import nn
from csrun.estimator import CSEstimatorSpec

CLASSES = 10


def model_fn(features: nn.Tensor, labels: nn.Tensor, mode: str, params: Params) -> CSEstimatorSpec:
    """Model function: loss, training and accuracy.

    Shapes: features [B, 28, 28], labels [B]
    """
    logits = cnn(features[:, None], params.model, mode)  # [B, 10]
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


def cnn(images: nn.Tensor, model: Model, mode: str) -> nn.Tensor:
    """Logits of the digits.

    Shapes: images [B, 1, 28, 28] -> [B, 10]
    """
    x = images
    for number, filters in enumerate(model.filters):
        with nn.scope(f"block_{number}"):
            x = block(filters, model.momentum)(x)  # [B, filters, H / 2, W / 2]
    x = nn.Dense(model.hidden_size, activation="relu", name="hidden")(nn.flatten(x))
    if mode == nn.TRAIN and model.dropout:
        x = nn.Dropout(model.dropout)(x)
    return nn.Dense(CLASSES, name="out")(x)


def block(filters: int, momentum: float) -> nn.Sequential:
    """Convolution, norm, activation and pooling; the norm's offset replaces a bias."""
    return nn.Sequential(
        [
            nn.Conv2D(filters, 3, padding="same", use_bias=False, name="conv"),
            nn.BatchNorm(momentum=momentum, name="norm"),
            nn.MaxPool(2, name="pool"),
            nn.relu,  # after pooling, which gives the same values with a quarter of the work
        ]
    )
