"""Reference interpreter: a slow, simple executable definition of a module's semantics.

Kernels are checked against it, and it is checked against PyTorch, operator by operator.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops import learning, model, padding
from csrun.cirh.ops import random as random_ops
from csrun.cirh.ops.base import CirhOp, number
from csrun.cirh.ops.constant_arrays import ConstantOp
from csrun.cirh.ops.learning import Clipping, UpdatingOp
from csrun.cirh.reference import masks
from csrun.cirh.reference.learning import Slots, next_values
from csrun.cirh.types import dtype_of, shape_of, type_of

Array = npt.NDArray[Any]
Named = dict[str, Array]


@dataclass
class ModuleState:
    """State of a run of a module: parameters, and the optimizer's slots of each."""

    parameters: Named
    slots: dict[str, Slots] = field(default_factory=dict)


@dataclass
class ModuleResult:
    """Result of a run of a module: loss, outputs, and each parameter's gradient."""

    loss: Array | None = None
    outputs: Named = field(default_factory=dict)
    gradients: Named = field(default_factory=dict)


NO_DRAW = masks.MaskCounter()


def interpret(
    module: ModuleOp,
    inputs: Mapping[str, Array],
    state: ModuleState,
    rows: int,
    draw: masks.MaskCounter = NO_DRAW,
) -> ModuleResult:
    """Run a module once; parameters and slots change if it trains.

    rows: number of valid samples of the batch.
    draw: counter of random masks.
    """
    return _Interpreter(inputs, state, rows, draw).run(module)


class _Interpreter:
    def __init__(
        self, inputs: Mapping[str, Array], state: ModuleState, rows: int, draw: masks.MaskCounter
    ) -> None:
        self._inputs = inputs
        self._state = state
        self._rows = rows
        self._draw = draw
        self._values: dict[SSAValue, Array] = {}
        self._result = ModuleResult()
        self._updates: list[learning.UpdatingOp] = []
        self._assigned: Named = {}
        self._special: dict[type[Operation], Callable[..., None]] = {
            model.InputOp: self._input,
            model.ParameterOp: self._parameter,
            model.StateOp: self._parameter,
            model.FullOp: self._full,
            ConstantOp: self._constant,
            padding.SampleCountOp: self._sample_count,
            padding.ValidSamplesOp: self._sample_count,
            padding.FirstSampleOp: self._first_sample,
            random_ops.DropoutMaskOp: self._mask,
            random_ops.UniformOp: self._uniform,
            model.LossOp: self._loss,
            model.OutputOp: self._output,
            learning.AssignOp: self._assign,
            **dict.fromkeys(learning.UPDATES.values(), self._update),
        }

    def run(self, module: ModuleOp) -> ModuleResult:
        for op in module.ops:
            special = self._special.get(type(op))
            if special:
                special(op)
            else:
                assert isinstance(op, CirhOp), "a module holds operators of CIRH only"
                with np.errstate(all="ignore"):  # NaN and infinity are valid values
                    computed = op.compute(*(self._values[o] for o in op.operands))
                several = computed if isinstance(computed, tuple) else (computed,)
                self._values.update(zip(op.results, map(np.asarray, several), strict=True))
        self._commit()
        return self._result

    def _input(self, op: model.InputOp) -> None:
        self._values[op.out] = self._inputs[op.symbol.data]

    def _parameter(self, op: model.StoredOp) -> None:
        self._values[op.out] = self._state.parameters[op.symbol.data]

    def _full(self, op: model.FullOp) -> None:
        kind = type_of(op.out)
        self._values[op.out] = np.full(
            shape_of(kind), number(op.properties, "value"), dtype_of(kind)
        )

    def _constant(self, op: ConstantOp) -> None:
        self._values[op.out] = op.array()

    def _sample_count(self, op: padding.SampleCountOp | padding.ValidSamplesOp) -> None:
        self._values[op.out] = np.asarray(self._rows, dtype_of(type_of(op.out)))

    def _first_sample(self, op: padding.FirstSampleOp) -> None:
        self._values[op.out] = np.asarray(self._draw.first_sample, dtype_of(type_of(op.out)))

    def _mask(self, op: random_ops.DropoutMaskOp) -> None:
        shape = shape_of(type_of(op.out))
        self._values[op.out] = masks.dropout_mask(op.properties, shape, self._draw)

    def _uniform(self, op: random_ops.UniformOp) -> None:
        shape = shape_of(type_of(op.out))
        self._values[op.out] = masks.uniform(op.properties, shape, self._draw)

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

    def _assign(self, op: learning.AssignOp) -> None:
        owner = op.parameter.owner
        assert isinstance(owner, model.StateOp), "only states are assigned to"
        self._assigned[owner.symbol.data] = self._values[op.grad]

    def _commit(self) -> None:
        """Apply the updates, once all gradients are computed."""
        self._state.parameters.update(self._assigned)
        gradients = self._result.gradients
        for op, (name, grad) in zip(self._updates, gradients.items(), strict=True):
            scaled = _clipped(op, grad, gradients)
            state = self._state
            slots = state.slots.get(name, {})
            state.parameters[name], state.slots[name] = next_values(
                op, state.parameters[name], scaled, slots
            )


def _clipped(op: UpdatingOp, grad: Any, gradients: Named) -> Any:
    """Return a clipped gradient, of its own type."""
    limits, factor = Clipping.of(op), np.ones(())
    if limits.clip_norm is not None:
        norm = np.sqrt(sum(np.sum(np.square(each, dtype="d")) for each in gradients.values()))
        factor = np.minimum(1.0, limits.clip_norm / (norm + 1e-6))
    if limits.clip_each is not None:
        norm = factor * np.sqrt(np.sum(np.square(grad, dtype="d")))
        factor = factor if norm <= limits.clip_each else factor * limits.clip_each / norm
    scaled = grad * factor.astype(dtype_of(type_of(op.grad)))
    most = limits.clip_value
    return scaled if most is None else np.clip(scaled, -most, most)
