"""Layers, functions, losses and optimizers for model functions.

hidden = nn.Dense(50, activation="relu")(nn.flatten(features))
logits = nn.Dense(10)(hidden)
loss = nn.softmax_cross_entropy(logits, labels)
train_op = nn.SGD(0.01, momentum=0.9).minimize(loss)
"""

from csrun.base.mode import RunMode
from csrun.executable import learning_rate as schedules
from csrun.nn import initializers, metrics, summary
from csrun.nn.activations import (
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
from csrun.nn.attention import MultiHeadAttention, scaled_dot_product_attention
from csrun.nn.embedding import Embedding, PositionEmbedding
from csrun.nn.errors import ShapeError
from csrun.nn.functions import (
    argmax,
    exp,
    flatten,
    log,
    matmul,
    mean,
    sample_count,
    softmax_cross_entropy,
    sqrt,
    sum,
)
from csrun.nn.layers import Bias, Dense, Dropout
from csrun.nn.normalization import LayerNorm, RMSNorm
from csrun.nn.optimizer import SGD, Adam, AdamW, Optimizer, TrainOp
from csrun.nn.rotary import rotary_embedding
from csrun.nn.shapes import broadcast_to, concatenate, reshape, transpose
from csrun.nn.tensor import Tensor
from csrun.nn.tracer import scope

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
    "Bias",
    "Dense",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "MultiHeadAttention",
    "Optimizer",
    "PositionEmbedding",
    "RMSNorm",
    "ShapeError",
    "Tensor",
    "TrainOp",
    "argmax",
    "broadcast_to",
    "concatenate",
    "elu",
    "exp",
    "flatten",
    "gelu",
    "gelu_tanh",
    "initializers",
    "leaky_relu",
    "log",
    "matmul",
    "mean",
    "metrics",
    "relu",
    "relu6",
    "reshape",
    "rotary_embedding",
    "sample_count",
    "scaled_dot_product_attention",
    "schedules",
    "scope",
    "selu",
    "sigmoid",
    "silu",
    "softmax_cross_entropy",
    "softplus",
    "sqrt",
    "sum",
    "summary",
    "tanh",
    "transpose",
]
