"""Reference updates: the next parameter value of each learning algorithm."""

from collections.abc import Callable
from typing import Any

import numpy as np

from csrun.cirh.algorithms import (
    AdadeltaAttr,
    AdagradAttr,
    AdamAttr,
    AdamaxAttr,
    Algorithm,
    LambAttr,
    NAdamAttr,
    RAdamAttr,
    Rate,
    RmsPropAttr,
    ScheduleAttr,
    SgdAttr,
    StepNumberAttr,
)
from csrun.cirh.algorithms.base import Decay, Share
from csrun.cirh.ops.learning import UpdatingOp

Slots = dict[str, Any]


def next_values(op: UpdatingOp, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    """Return a parameter's next value, and its optimizer state, which is empty at first."""
    return updated(op.properties["algorithm"], weights, grad, slots)


def updated(algorithm: Any, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    """Return a parameter's next value by an algorithm, and its optimizer state, as of
    `next_values`.
    """
    grad = -grad if algorithm.maximize.value.data else grad
    return _UPDATES[type(algorithm)](algorithm, weights, grad, slots)


def _sgd(algorithm: SgdAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    momentum = _constant(algorithm.momentum)
    grad = grad + _constant(algorithm.weight_decay) * weights
    inside, outside = _rates(algorithm)
    grad = grad * inside
    velocity = grad
    if "momentum" in slots:
        velocity = momentum * slots["momentum"] + (1 - algorithm.dampening.value.data) * grad
    step = grad + momentum * velocity if algorithm.nesterov.value.data else velocity
    return weights - outside * step, {"momentum": velocity}


def _rates(algorithm: SgdAttr | RmsPropAttr) -> tuple[float, float]:
    """Return the factor of the velocity's increment, and that of the velocity."""
    rate = _rate(algorithm.learning_rate)
    return (rate, 1.0) if algorithm.rate_inside.value.data else (1.0, rate)


def _moments(
    algorithm: AdamAttr | LambAttr | AdamaxAttr | NAdamAttr | RAdamAttr, grad: Any, slots: Slots
) -> tuple[Any, Any, tuple[float, float], Slots]:
    """Return both running means, the divisors of the bias correction, and the slots."""
    beta1, beta2 = _constant(algorithm.beta1), algorithm.beta2.value.data
    steps = slots.get("steps", 0) + 1
    m = beta1 * slots.get("m", np.zeros_like(grad)) + (1 - beta1) * grad
    v = beta2 * slots.get("v", np.zeros_like(grad)) + (1 - beta2) * grad * grad
    bias = (1 - beta1**steps, 1 - beta2**steps)
    if isinstance(algorithm, AdamAttr) and algorithm.rounded_betas.value.data:
        bias = (1 - float(np.float32(beta1)) ** steps, 1 - float(np.float32(beta2)) ** steps)
    if isinstance(algorithm, AdamAttr | LambAttr) and not algorithm.bias_correction.value.data:
        bias = (1.0, 1.0)
    return m, v, bias, {"steps": steps, "m": m, "v": v}


def _adam(algorithm: AdamAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    rate, epsilon = _rate(algorithm.learning_rate), algorithm.epsilon.value.data
    weights, grad = _decayed(algorithm, weights, grad)
    largest = slots.get("largest", 0.0)
    m, v, (bias1, bias2), slots = _moments(algorithm, grad, slots)
    if algorithm.amsgrad.value.data:
        v = slots["largest"] = np.maximum(v, largest)
    if algorithm.epsilon_hat.value.data:
        return weights - rate * bias2**0.5 / bias1 * m / (np.sqrt(v) + epsilon), slots
    return weights - rate * (m / bias1) / (np.sqrt(v / bias2) + epsilon), slots


def _lamb(algorithm: LambAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    m, v, (bias1, bias2), slots = _moments(algorithm, grad, slots)
    update = (m / bias1) / (np.sqrt(v / bias2) + algorithm.epsilon.value.data)
    update = update + _constant(algorithm.weight_decay) * weights
    length, step = (np.sqrt(np.sum(np.square(x, dtype="d"))) for x in (weights, update))
    ratio = float(length / step) if length > 0 and step > 0 else 1.0
    return weights - _rate(algorithm.learning_rate) * ratio * update, slots


def _root(algorithm: AdagradAttr | RmsPropAttr, squares: Any) -> Any:
    """Return the root of squares, with epsilon inside or outside."""
    epsilon = algorithm.epsilon.value.data
    if algorithm.epsilon_inside.value.data:
        return np.sqrt(squares + epsilon)
    return np.sqrt(squares) + epsilon


def _adagrad(algorithm: AdagradAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    grad = grad + _constant(algorithm.weight_decay) * weights
    steps = slots.get("steps", 0)
    first = np.full_like(grad, algorithm.initial_accumulator.value.data)
    squares = slots.get("squares", first) + grad * grad
    rate = _rate(algorithm.learning_rate) / (1 + steps * algorithm.lr_decay.value.data)
    root = _root(algorithm, squares)
    return weights - rate * grad / root, {"steps": steps + 1, "squares": squares}


def _rmsprop(algorithm: RmsPropAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    alpha, zeros = algorithm.alpha.value.data, np.zeros_like(grad)
    grad = grad + _constant(algorithm.weight_decay) * weights
    first = np.full_like(grad, algorithm.initial_accumulator.value.data)
    squares = alpha * slots.get("squares", first) + (1 - alpha) * grad * grad
    mean = alpha * slots.get("mean", zeros) + (1 - alpha) * grad
    centered = squares - mean * mean if algorithm.centered.value.data else squares
    step = grad / _root(algorithm, np.maximum(centered, 0))
    inside, outside = _rates(algorithm)
    step = _constant(algorithm.momentum) * slots.get("momentum", zeros) + inside * step
    slots = {"squares": squares, "mean": mean, "momentum": step}
    return weights - outside * step, slots


def _decayed(
    algorithm: AdamAttr | NAdamAttr | RAdamAttr, weights: Any, grad: Any
) -> tuple[Any, Any]:
    """Return weights and gradient after the decay."""
    decay = _constant(algorithm.weight_decay)
    if algorithm.decoupled.value.data:
        return weights - _rate(algorithm.learning_rate) * decay * weights, grad
    return weights, grad + decay * weights


def _adamax(algorithm: AdamaxAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    grad = grad + _constant(algorithm.weight_decay) * weights
    kept = algorithm.beta2.value.data * slots.get("norm", np.zeros_like(grad))
    norm = np.maximum(kept, np.abs(grad) + algorithm.epsilon.value.data)
    m, _, (bias1, _), slots = _moments(algorithm, grad, slots)
    return weights - _rate(algorithm.learning_rate) / bias1 * m / norm, {**slots, "norm": norm}


def _nadam(algorithm: NAdamAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    weights, grad = _decayed(algorithm, weights, grad)
    product = slots.get("product", 1.0)
    m, v, (_, bias2), slots = _moments(algorithm, grad, slots)
    beta1, decay = algorithm.beta1.value.data, algorithm.momentum_decay.value.data
    now, ahead = (beta1 * (1 - 0.96 ** (decay * (slots["steps"] + k)) / 2) for k in (0, 1))
    product *= now
    step = ahead / (1 - product * ahead) * m + (1 - now) / (1 - product) * grad
    step = step / (np.sqrt(v / bias2) + algorithm.epsilon.value.data)
    return weights - _rate(algorithm.learning_rate) * step, {**slots, "product": product}


def _radam(algorithm: RAdamAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    weights, grad = _decayed(algorithm, weights, grad)
    m, v, (bias1, bias2), slots = _moments(algorithm, grad, slots)
    most = 2 / (1 - algorithm.beta2.value.data) - 1
    length = most - 2 * slots["steps"] * (1 - bias2) / bias2
    step = m / bias1
    if length > 5:
        squared = (length - 4) * (length - 2) * most / ((most - 4) * (most - 2) * length)
        step = step * (squared * bias2) ** 0.5 / (np.sqrt(v) + algorithm.epsilon.value.data)
    return weights - _rate(algorithm.learning_rate) * step, slots


def _adadelta(algorithm: AdadeltaAttr, weights: Any, grad: Any, slots: Slots) -> tuple[Any, Slots]:
    rho, epsilon = algorithm.rho.value.data, algorithm.epsilon.value.data
    grad = grad + _constant(algorithm.weight_decay) * weights
    squares = rho * slots.get("squares", np.zeros_like(grad)) + (1 - rho) * grad * grad
    deltas = slots.get("deltas", np.zeros_like(grad))
    step = np.sqrt(deltas + epsilon) / np.sqrt(squares + epsilon) * grad
    deltas = rho * deltas + (1 - rho) * step * step
    slots = {"squares": squares, "deltas": deltas}
    return weights - _rate(algorithm.learning_rate) * step, slots


def _constant(number: Decay | Share) -> float:
    if isinstance(number, StepNumberAttr):
        raise ValueError(f"the reference supports constant decays and momenta only, got {number}")
    return number.value.data


def _rate(schedule: Rate) -> float:
    numbers = schedule.numbers if isinstance(schedule, ScheduleAttr) else {}
    rate = numbers.get("learning_rate")
    if not isinstance(rate, float):
        raise ValueError(f"the reference supports constant learning rates only, got {schedule}")
    return rate


_UPDATES: dict[type[Algorithm], Callable[..., tuple[Any, Slots]]] = {
    SgdAttr: _sgd,
    AdamAttr: _adam,
    LambAttr: _lamb,
    AdagradAttr: _adagrad,
    RmsPropAttr: _rmsprop,
    AdamaxAttr: _adamax,
    NAdamAttr: _nadam,
    RAdamAttr: _radam,
    AdadeltaAttr: _adadelta,
}
