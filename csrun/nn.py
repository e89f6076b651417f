"""Layers, functions, losses and optimizers for model functions.

hidden = nn.Dense(50, activation="relu")(nn.flatten(features))
logits = nn.Dense(10)(hidden)
loss = nn.softmax_cross_entropy(logits, labels)
train_op = nn.SGD(0.01, momentum=0.9).minimize(loss)
"""

from csrun.frontend.nn import (
    EVAL,
    PREDICT,
    SGD,
    TRAIN,
    Adam,
    AdamW,
    Dense,
    Dropout,
    Optimizer,
    ShapeError,
    Tensor,
    TrainOp,
    argmax,
    flatten,
    initializers,
    metrics,
    relu,
    schedules,
    softmax_cross_entropy,
)

__all__ = [
    "EVAL",
    "PREDICT",
    "SGD",
    "TRAIN",
    "Adam",
    "AdamW",
    "Dense",
    "Dropout",
    "Optimizer",
    "ShapeError",
    "Tensor",
    "TrainOp",
    "argmax",
    "flatten",
    "initializers",
    "metrics",
    "relu",
    "schedules",
    "softmax_cross_entropy",
]
