"""The reference interpreter: the slow, plain, living definition of what a module computes.

Kernels are checked against it, and it is checked against PyTorch, operator by operator.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from csrun.cirh.algorithms import AdamAttr, ScheduleAttr, SgdAttr
from csrun.cirh.ops import batch, learning, model
from csrun.cirh.ops import random as random_ops
from csrun.cirh.ops.base import number
from csrun.cirh.ops.learning import AdamOp, SgdOp, UpdatingOp
from csrun.cirh.reference import arithmetic, neural, transformers
from csrun.cirh.reference.arithmetic import Array, References
from csrun.cirh.types import dtype_of, shape_of, type_of

REFERENCES: References = {
    **arithmetic.REFERENCES,
    **neural.REFERENCES,
    **transformers.REFERENCES,
}
Named = dict[str, Array]


@dataclass
class State:
    """What a run of a module reads and changes: parameters and the optimizer's slots, by name."""

    parameters: Named
    slots: Named = field(default_factory=dict)


@dataclass
class Result:
    """What a run of a module gives: its loss, its outputs, each parameter's gradient."""

    loss: Array | None = None
    outputs: Named = field(default_factory=dict)
    gradients: Named = field(default_factory=dict)


NO_DRAW = neural.Draw()


def interpret(
    module: ModuleOp,
    inputs: Mapping[str, Array],
    state: State,
    rows: int,
    draw: neural.Draw = NO_DRAW,
) -> Result:
    """Run a module once; parameters and slots change when it trains.

    rows: valid samples of the batch; draw: what random masks are drawn for
    """
    return _Run(inputs, state, rows, draw).run(module)


class _Run:
    def __init__(
        self, inputs: Mapping[str, Array], state: State, rows: int, draw: neural.Draw
    ) -> None:
        self._inputs = inputs
        self._state = state
        self._rows = rows
        self._draw = draw
        self._values: dict[SSAValue, Array] = {}
        self._result = Result()
        self._updates: list[learning.UpdatingOp] = []
        self._special: dict[type[Operation], Callable[..., None]] = {
            model.InputOp: self._input,
            model.ParameterOp: self._parameter,
            model.FullOp: self._full,
            batch.SampleCountOp: self._sample_count,
            batch.ValidSamplesOp: self._sample_count,
            random_ops.DropoutMaskOp: self._mask,
            model.LossOp: self._loss,
            model.OutputOp: self._output,
            learning.SgdOp: self._update,
            learning.AdamOp: self._update,
        }

    def run(self, module: ModuleOp) -> Result:
        for op in module.ops:
            special = self._special.get(type(op))
            if special:
                special(op)
            else:
                function = REFERENCES[type(op)]
                operands = [self._values[o] for o in op.operands]
                computed = function(op.properties, *operands)
                several = computed if isinstance(computed, tuple) else (computed,)
                self._values.update(zip(op.results, several, strict=True))
        self._commit()
        return self._result

    def _input(self, op: model.InputOp) -> None:
        self._values[op.out] = self._inputs[op.symbol.data]

    def _parameter(self, op: model.ParameterOp) -> None:
        self._values[op.out] = self._state.parameters[op.symbol.data]

    def _full(self, op: model.FullOp) -> None:
        kind = type_of(op.out)
        self._values[op.out] = np.full(
            shape_of(kind), number(op.properties, "value"), dtype_of(kind)
        )

    def _sample_count(self, op: batch.SampleCountOp | batch.ValidSamplesOp) -> None:
        self._values[op.out] = np.asarray(self._rows, dtype_of(type_of(op.out)))

    def _mask(self, op: random_ops.DropoutMaskOp) -> None:
        shape = shape_of(type_of(op.out))
        self._values[op.out] = neural.dropout_mask(op.properties, shape, self._draw)

    def _loss(self, op: model.LossOp) -> None:
        self._result.loss = self._values[op.value]

    def _output(self, op: model.OutputOp) -> None:
        self._result.outputs[op.symbol.data] = self._values[op.value]

    def _update(self, op: learning.UpdatingOp) -> None:
        owner = op.parameter.owner
        assert isinstance(owner, model.ParameterOp), "only parameters are updated"
        name, grad = owner.symbol.data, self._values[op.grad]
        self._result.gradients[name] = grad
        self._updates.append(op)

    def _commit(self) -> None:
        """The updates, when all gradients are there."""
        gradients = self._result.gradients
        for op, (name, grad) in zip(self._updates, gradients.items(), strict=True):
            scaled = grad * _clipping(op, gradients)
            update(op, name, self._state.parameters, self._state.slots, scaled)


def _clipping(op: UpdatingOp, gradients: Named) -> Any:
    """What a gradient is scaled by, in its own type."""
    if op.clip_norm is None:
        return np.ones((), dtype_of(type_of(op.grad)))
    norm = np.sqrt(sum(np.sum(np.square(grad, dtype="d")) for grad in gradients.values()))
    factor = np.minimum(1.0, op.clip_norm.value.data / (norm + 1e-6))
    return factor.astype(dtype_of(type_of(op.grad)))


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
    steps = state["steps"] = int(state["steps"].flat[0]) + 1  # in float32 it would end at 2^24
    state["m"] = beta1 * state["m"] + (1 - beta1) * grad
    state["v"] = beta2 * state["v"] + (1 - beta2) * grad * grad
    mean = state["m"] / (1 - beta1**steps)
    square = state["v"] / (1 - beta2**steps)
    return weights - rate * mean / (np.sqrt(square) + algorithm.epsilon.value.data)


def _rate(schedule: ScheduleAttr) -> float:
    rate = schedule.numbers.get("learning_rate")
    if not isinstance(rate, float):
        raise ValueError(f"the reference takes constant learning rates, got {schedule}")
    return rate


_KEYS: dict[type[UpdatingOp], tuple[str, ...]] = {SgdOp: ("momentum",), AdamOp: ("m", "v", "steps")}
