"""Layers, functions, losses and optimizers for model functions.

hidden = nn.Dense(50, activation="relu")(nn.flatten(features))
logits = nn.Dense(10)(hidden)
loss = nn.softmax_cross_entropy(logits, labels)
train_op = nn.SGD(0.01, momentum=0.9).minimize(loss)
"""

from csrun.base.mode import RunMode
from csrun.executable import learning_rate as schedules
from csrun.nn import (
    activations,
    elementwise,
    functions,
    indexing,
    initializers,
    losses,
    metrics,
    shapes,
    summary,
)
from csrun.nn.activations import *
from csrun.nn.attention import MultiHeadAttention, scaled_dot_product_attention
from csrun.nn.convolution import Conv2D
from csrun.nn.elementwise import *
from csrun.nn.embedding import Embedding, PositionEmbedding
from csrun.nn.errors import ShapeError
from csrun.nn.functions import *
from csrun.nn.indexing import *
from csrun.nn.layers import Bias, Dense, Dropout
from csrun.nn.losses import *
from csrun.nn.normalization import BatchNorm, LayerNorm, RMSNorm
from csrun.nn.optimizer import (
    SGD,
    Adagrad,
    Adam,
    AdamW,
    Lamb,
    Optimizer,
    RMSProp,
    TrainOp,
)
from csrun.nn.pooling import AveragePool, MaxPool
from csrun.nn.rotary import rotary_embedding
from csrun.nn.sequential import Sequential
from csrun.nn.shapes import *
from csrun.nn.signature import checked, checked_layer
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
    "Adagrad",
    "Adam",
    "AdamW",
    "AveragePool",
    "BatchNorm",
    "Bias",
    "Conv2D",
    "Dense",
    "Dropout",
    "Embedding",
    "Lamb",
    "LayerNorm",
    "MaxPool",
    "MultiHeadAttention",
    "Optimizer",
    "PositionEmbedding",
    "RMSNorm",
    "RMSProp",
    "Sequential",
    "ShapeError",
    "Tensor",
    "TrainOp",
    "initializers",
    "metrics",
    "rotary_embedding",
    "scaled_dot_product_attention",
    "schedules",
    "scope",
    "summary",
]
# Each module of functions lists its public names in __all__.
__all__ += activations.__all__
__all__ += elementwise.__all__
__all__ += functions.__all__
__all__ += indexing.__all__
__all__ += losses.__all__
__all__ += shapes.__all__

# A call that does not match its signature fails with one line that names the user's line.
for _module in (activations, elementwise, functions, indexing, losses, shapes):
    for _name in _module.__all__:
        globals()[_name] = checked(getattr(_module, _name))
rotary_embedding = checked(rotary_embedding)
scaled_dot_product_attention = checked(scaled_dot_product_attention)
for _layer in (
    AveragePool,
    BatchNorm,
    Bias,
    Conv2D,
    Dense,
    Dropout,
    Embedding,
    LayerNorm,
    MaxPool,
    MultiHeadAttention,
    PositionEmbedding,
    RMSNorm,
    Sequential,
):
    checked_layer(_layer)
Embedding.attend = checked(Embedding.attend, "Embedding(...).attend")  # type: ignore[method-assign]
