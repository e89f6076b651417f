"""Reference implementations of the updates, textbook form, at a constant learning rate."""

from typing import Any

import numpy as np

from csrun.cirh.algorithms import AdamAttr, ScheduleAttr, SgdAttr
from csrun.cirh.ops.learning import AdamOp, SgdOp, UpdatingOp
from csrun.cirh.reference.table import Array

Named = dict[str, Array]


def update(op: UpdatingOp, name: str, parameters: Named, slots: Named, grad: Any) -> None:
    """Put a parameter's next value, and its optimizer state, in the place of the old ones."""
    weights: Any = parameters[name]
    state = {key: slots.get(f"{key}/{name}", np.zeros_like(weights)) for key in _KEYS[type(op)]}
    if isinstance(op, SgdOp):
        parameters[name] = _sgd(op.algorithm, weights, grad, state)
    elif isinstance(op, AdamOp):
        parameters[name] = _adam(op.algorithm, weights, grad, state)
    slots.update({f"{key}/{name}": np.asarray(value) for key, value in state.items()})


def _sgd(algorithm: SgdAttr, weights: Any, grad: Any, state: dict[str, Any]) -> Any:
    momentum = algorithm.momentum.value.data
    grad = grad + algorithm.weight_decay.value.data * weights
    velocity = state["momentum"] = momentum * state["momentum"] + grad
    step = grad + momentum * velocity if algorithm.nesterov.value.data else velocity
    return weights - _rate(algorithm.learning_rate) * step


def _adam(algorithm: AdamAttr, weights: Any, grad: Any, state: dict[str, Any]) -> Any:
    rate, decay = _rate(algorithm.learning_rate), algorithm.weight_decay.value.data
    beta1, beta2 = algorithm.beta1.value.data, algorithm.beta2.value.data
    if algorithm.decoupled.value.data:
        weights = weights - rate * decay * weights
    else:
        grad = grad + decay * weights
    state["steps"] = state["steps"] + 1
    state["m"] = beta1 * state["m"] + (1 - beta1) * grad
    state["v"] = beta2 * state["v"] + (1 - beta2) * grad * grad
    mean = state["m"] / (1 - beta1 ** state["steps"])
    square = state["v"] / (1 - beta2 ** state["steps"])
    return weights - rate * mean / (np.sqrt(square) + algorithm.epsilon.value.data)


def _rate(schedule: ScheduleAttr) -> float:
    rate = schedule.numbers.get("learning_rate")
    if not isinstance(rate, float):
        raise ValueError(f"the reference takes constant learning rates, got {schedule}")
    return rate


_KEYS: dict[type[UpdatingOp], tuple[str, ...]] = {SgdOp: ("momentum",), AdamOp: ("m", "v", "steps")}
