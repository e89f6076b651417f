"""Layers and functions that a model function is written with, and the tracer that records them."""

from csrun.executable import schedule as schedules
from csrun.frontend.nn import initializers, metrics, summary
from csrun.frontend.nn.activations import (
    elu,
    gelu,
    gelu_tanh,
    leaky_relu,
    relu,
    relu6,
    selu,
    sigmoid,
    silu,
    softplus,
    tanh,
)
from csrun.frontend.nn.arithmetic import exp, log, mean, sqrt, sum
from csrun.frontend.nn.dense import Dense
from csrun.frontend.nn.dropout import Dropout
from csrun.frontend.nn.errors import ShapeError, TraceError
from csrun.frontend.nn.losses import argmax, softmax_cross_entropy
from csrun.frontend.nn.optimizer import SGD, Adam, AdamW, Optimizer, TrainOp
from csrun.frontend.nn.shapes import flatten
from csrun.frontend.nn.tensor import Tensor
from csrun.frontend.nn.tracer import Tracer
from csrun.mode import RunMode

TRAIN = RunMode.TRAIN
EVAL = RunMode.EVAL
PREDICT = RunMode.PREDICT

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
    "RunMode",
    "ShapeError",
    "Tensor",
    "TraceError",
    "Tracer",
    "TrainOp",
    "argmax",
    "elu",
    "exp",
    "flatten",
    "gelu",
    "gelu_tanh",
    "initializers",
    "leaky_relu",
    "log",
    "mean",
    "metrics",
    "relu",
    "relu6",
    "schedules",
    "selu",
    "sigmoid",
    "silu",
    "softmax_cross_entropy",
    "softplus",
    "sqrt",
    "sum",
    "summary",
    "tanh",
]
