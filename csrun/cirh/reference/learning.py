"""The reference updates: what each learning algorithm makes of a parameter and its gradient."""

from collections.abc import Callable
from typing import Any

import numpy as np

from csrun.cirh.algorithms import (
    AdagradAttr,
    AdamAttr,
    Algorithm,
    LambAttr,
    Rate,
    RmsPropAttr,
    ScheduleAttr,
    SgdAttr,
    StepNumberAttr,
)
from csrun.cirh.algorithms.base import Decay
from csrun.cirh.ops.learning import UpdatingOp

Slots = dict[str, Any]


def next_values(op: UpdatingOp, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    """A parameter's next value, and its optimizer state, of which there is none at first."""
    algorithm = op.properties["algorithm"]
    assert isinstance(algorithm, Algorithm), "declared so by all updates"
    return _UPDATES[type(algorithm)](algorithm, weights, grad, slots)


def _sgd(algorithm: SgdAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    momentum = algorithm.momentum.value.data
    grad = grad + _decay(algorithm.weight_decay) * weights
    velocity = momentum * slots.get("momentum", np.zeros_like(weights)) + grad
    step = grad + momentum * velocity if algorithm.nesterov.value.data else velocity
    return weights - _rate(algorithm.learning_rate) * step, {"momentum": velocity}


def _moments(
    algorithm: AdamAttr | LambAttr, grad: Any, slots: Slots
) -> tuple[Any, Any, tuple[float, float], Slots]:
    """Both running means, what bias correction divides them by, and the slots."""
    beta1, beta2 = algorithm.beta1.value.data, algorithm.beta2.value.data
    steps = slots.get("steps", 0) + 1
    m = beta1 * slots.get("m", np.zeros_like(grad)) + (1 - beta1) * grad
    v = beta2 * slots.get("v", np.zeros_like(grad)) + (1 - beta2) * grad * grad
    bias = (1 - beta1**steps, 1 - beta2**steps)
    if not algorithm.bias_correction.value.data:
        bias = (1.0, 1.0)
    return m, v, bias, {"steps": steps, "m": m, "v": v}


def _adam(algorithm: AdamAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    rate, decay = _rate(algorithm.learning_rate), _decay(algorithm.weight_decay)
    epsilon = algorithm.epsilon.value.data
    if algorithm.decoupled.value.data:
        weights = weights - rate * decay * weights
    else:
        grad = grad + decay * weights
    m, v, (bias1, bias2), slots = _moments(algorithm, grad, slots)
    if algorithm.epsilon_hat.value.data:
        return weights - rate * bias2**0.5 / bias1 * m / (np.sqrt(v) + epsilon), slots
    return weights - rate * (m / bias1) / (np.sqrt(v / bias2) + epsilon), slots


def _lamb(algorithm: LambAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    m, v, (bias1, bias2), slots = _moments(algorithm, grad, slots)
    update = (m / bias1) / (np.sqrt(v / bias2) + algorithm.epsilon.value.data)
    update = update + _decay(algorithm.weight_decay) * weights
    length, step = (np.sqrt(np.sum(np.square(x, dtype="d"))) for x in (weights, update))
    ratio = float(length / step) if length > 0 and step > 0 else 1.0
    return weights - _rate(algorithm.learning_rate) * ratio * update, slots


def _adagrad(algorithm: AdagradAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    grad = grad + _decay(algorithm.weight_decay) * weights
    steps = slots.get("steps", 0)
    first = np.full_like(grad, algorithm.initial_accumulator.value.data)
    squares = slots.get("squares", first) + grad * grad
    rate = _rate(algorithm.learning_rate) / (1 + steps * algorithm.lr_decay.value.data)
    root = np.sqrt(squares) + algorithm.epsilon.value.data
    return weights - rate * grad / root, {"steps": steps + 1, "squares": squares}


def _rmsprop(algorithm: RmsPropAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    alpha, zeros = algorithm.alpha.value.data, np.zeros_like(grad)
    grad = grad + _decay(algorithm.weight_decay) * weights
    squares = alpha * slots.get("squares", zeros) + (1 - alpha) * grad * grad
    mean = alpha * slots.get("mean", zeros) + (1 - alpha) * grad
    centered = squares - mean * mean if algorithm.centered.value.data else squares
    step = grad / (np.sqrt(np.maximum(centered, 0)) + algorithm.epsilon.value.data)
    step = algorithm.momentum.value.data * slots.get("momentum", zeros) + step
    slots = {"squares": squares, "mean": mean, "momentum": step}
    return weights - _rate(algorithm.learning_rate) * step, slots


def _decay(decay: Decay) -> float:
    if isinstance(decay, StepNumberAttr):
        raise ValueError(f"the reference takes constant weight decays, got {decay}")
    return decay.value.data


def _rate(schedule: Rate) -> float:
    numbers = schedule.numbers if isinstance(schedule, ScheduleAttr) else {}
    rate = numbers.get("learning_rate")
    if not isinstance(rate, float):
        raise ValueError(f"the reference takes constant learning rates, got {schedule}")
    return rate


_UPDATES: dict[type[Algorithm], Callable[..., tuple[Any, Slots]]] = {
    SgdAttr: _sgd,
    AdamAttr: _adam,
    LambAttr: _lamb,
    AdagradAttr: _adagrad,
    RmsPropAttr: _rmsprop,
}
