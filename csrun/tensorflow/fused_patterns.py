"""Patterns of operators that are imported as one: mean cross entropy, dropout."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun import nn
from csrun.tensorflow.operators.base import GraphEmission, Value

Constants = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Pattern:
    """A match. inputs: tensors that it reads; emit: takes the emission and their values."""

    inputs: tuple[Any, ...]
    emit: Callable[..., Value]


def match(op: Any, constants: Constants) -> Pattern | None:
    """Return the pattern that ends with an operator, if there is one."""
    return next((found for each in _PATTERNS if (found := each(op, constants))), None)


def _mean_cross_entropy(op: Any, constants: Constants) -> Pattern | None:
    """Mean over all labels of sparse_softmax_cross_entropy_with_logits."""
    if op.type != "Mean" or op.outputs[0].shape.rank != 0:
        return None
    source = _below(op.inputs[0].op, ("Reshape", "Identity"))
    if source.type != "SparseSoftmaxCrossEntropyWithLogits":
        return None
    if source.outputs[0].shape.num_elements() != op.inputs[0].shape.num_elements():
        return None

    def emit(e: GraphEmission, logits: Value, labels: Value) -> Value:
        return nn.softmax_cross_entropy(e.tensor(logits), e.tensor(labels))

    return Pattern(tuple(source.inputs), emit)


def _dropout(op: Any, constants: Constants) -> Pattern | None:
    """x * scale where a random number is at least the rate, else 0."""
    if op.type in ("Select", "SelectV2"):
        condition, kept, other = op.inputs
        if (zeros := constants.get(other.name)) is None or np.any(zeros):
            return None
    elif op.type == "Mul" and any(t.op.type == "Cast" for t in op.inputs):
        is_mask = [_rate(t.op.inputs[0], constants) is not None for t in op.inputs if t.op.inputs]
        if not any(is_mask):
            return None
        place = is_mask.index(True)
        condition, kept = op.inputs[place].op.inputs[0], op.inputs[1 - place]
    else:
        return None
    rate = _rate(condition, constants)
    if rate is None:
        return None

    def emit(e: GraphEmission, x: Value) -> Value:
        return nn.Dropout(rate)(e.tensor(x)) * (1.0 - rate)

    return Pattern((kept,), emit)


def _rate(condition: Any, constants: Constants) -> float | None:
    """Return the dropped share of values, for a mask from uniform random numbers."""
    op = condition.op
    if op.type != "GreaterEqual":
        return None
    source = _below(op.inputs[0].op, ("Mul", "Add", "AddV2", "Cast", "Identity"))
    rate = constants.get(op.inputs[1].name)
    if source.type not in _UNIFORM or rate is None:
        return None
    return float(rate)


_UNIFORM = ("RandomUniform", "StatelessRandomUniform", "StatelessRandomUniformV2")


def _below(op: Any, kinds: tuple[str, ...]) -> Any:
    """Return the operator at the end of a chain along first inputs."""
    while op.type in kinds:
        op = op.inputs[0].op
    return op


_PATTERNS = (_mean_cross_entropy, _dropout)
