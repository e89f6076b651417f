"""Activations, softmax and cross entropy per sample."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from csrun import nn
from csrun.nn import Tensor
from csrun.tensorflow.operators.base import Emitter, GraphEmission, Value

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Relu": nn.relu,
    "Relu6": nn.relu6,
    "Tanh": nn.tanh,
    "Sigmoid": nn.sigmoid,
    "Softplus": nn.softplus,
    "Elu": nn.elu,
    "Selu": nn.selu,
    "Softsign": lambda x: x / (1.0 + nn.abs(x)),
    "Softmax": nn.softmax,
    "LogSoftmax": nn.log_softmax,
}


def _activation(function: Callable[[Tensor], Tensor], e: GraphEmission, op: Any, x: Value) -> Value:
    return function(e.tensor(x))


def leaky_relu(e: GraphEmission, op: Any, x: Value) -> Value:
    return nn.leaky_relu(e.tensor(x), op.get_attr("alpha"))


def sparse_cross_entropy(e: GraphEmission, op: Any, logits: Value, labels: Value) -> Value:
    """Shapes: logits [N, C], labels [N] -> [N]; the second output is for TensorFlow's gradient"""
    found, wanted = nn.log_softmax(e.tensor(logits)), e.tensor(labels)
    if e.has_padded_labels:
        wanted = nn.maximum(wanted, 0)
    rows = nn.gather(found, nn.reshape(wanted, (*wanted.shape, 1)), axis=-1)
    return -nn.reshape(rows, wanted.shape)


def cross_entropy(e: GraphEmission, op: Any, logits: Value, labels: Value) -> Value:
    """Shapes: logits and labels [N, C] -> [N]"""
    return -nn.sum(e.tensor(labels) * nn.log_softmax(e.tensor(logits)), axis=-1)


def one_hot(
    e: GraphEmission, op: Any, indices: Value, depth: Value, on: Value, off: Value
) -> Value:
    """Shapes: indices [...] -> [..., depth], with the new axis at the operator's position"""
    (count,) = e.integers(depth, "the depth")
    index = e.tensor(indices)
    axis = op.get_attr("axis") % (len(index.shape) + 1)
    apart = nn.reshape(index, (*index.shape[:axis], 1, *index.shape[axis:]))
    shape = tuple(count if a == axis else 1 for a in range(len(apart.shape)))
    classes = e.tensor(np.arange(count, dtype=index.dtype).reshape(shape))
    return nn.where(apart == classes, e.tensor(on), e.tensor(off))


EMITTERS: dict[str, Emitter] = {
    **{name: partial(_activation, function) for name, function in _ACTIVATIONS.items()},
    "LeakyRelu": leaky_relu,
    "SparseSoftmaxCrossEntropyWithLogits": sparse_cross_entropy,
    "SoftmaxCrossEntropyWithLogits": cross_entropy,
    "OneHot": one_hot,
}
