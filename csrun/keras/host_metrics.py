"""Metrics of a Keras model's `compile()`, computed on the host from an evaluation's outputs."""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Self
from zlib import crc32

import numpy as np
import torch
from keras.src.backend.common.masking import set_keras_mask
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map, tree_unflatten

from csrun.base.errors import UsageError
from csrun.executable.arrays import Array
from csrun.keras.custom_metrics import CustomMetrics, has_custom_metrics, logs_of
from csrun.keras.metric_calls import MetricCall
from csrun.keras.torch_backend import keras
from csrun.keras.variables_module import KerasModel
from csrun.pytorch.lower.to_cirh import output_name
from csrun.runtime.step.results import HostCall, StepResult
from csrun.runtime.wire.messages import Results

log = logging.getLogger("csrun")

LOSS = "loss"  # which the run has itself


@dataclass
class KerasMetrics(HostCall):
    """Metrics over the steps so far; each is one number.

    outputs: names of the batch, predictions, masks, and arguments of calls. zeros: make a value of
        each.
    calls: of metrics in the step, which are repeated here.
    """

    model: Any = None
    spec: TreeSpec | None = None
    zeros: tuple[Callable[[], Any], ...] = ()
    calls: Sequence[MetricCall] = ()
    taken: int = field(default=0)

    def __post_init__(self) -> None:
        self.own = CustomMetrics(self.model, [call.metric for call in self.calls])

    @classmethod
    def of(cls, model: KerasModel, measured: Any, calls: Sequence[MetricCall]) -> Self:
        """Return the metrics of a model. measured: the traced batch, outputs, masks, and outputs of
        the calls.
        """
        leaves, spec = tree_flatten(measured)
        names = tuple(output_name(leaf.value) for leaf in leaves)
        zeros = tuple(partial(torch.zeros, leaf.shape, dtype=leaf.dtype) for leaf in leaves)
        return cls(dict, names, model=model.keras, spec=spec, zeros=zeros, calls=calls)

    def take(self, result: StepResult) -> None:
        """Update the metrics by one step's outputs."""
        if not self.taken:
            self._reset_metrics()
        self.taken += 1
        self._update([keras.ops.convert_to_tensor(result.outputs[name]) for name in self.outputs])

    def _reset_metrics(self) -> None:
        for metric in self._metrics:
            metric.reset_state()
        self.own.reset()

    def _update(self, arrays: list[Any]) -> None:
        assert self.spec is not None, "given with the model"
        (x, *labels), predictions, masks, given = tree_unflatten(arrays, self.spec)
        for call, (values, of_values) in zip(self.calls, given, strict=True):
            call.repeat(values, of_values)
        if labels or has_custom_metrics(self.model):
            self._update_compiled(x, *(labels or (None,)), predictions=predictions, masks=masks)

    def _update_compiled(self, x: Any, y: Any, *weights: Any, predictions: Any, masks: Any) -> None:
        """Update the metrics of `compile()`, and those of the class's own compute_metrics."""
        for number, prediction in enumerate(tree_leaves(predictions)):
            if number in masks:
                set_keras_mask(prediction, masks[number] > 0)
        weights = tree_map(torch.clone, weights)
        if y is not None and (_losses_of(self.model) or (masks and weights)):
            # _compile_loss updates the loss metrics, and multiplies the masks into `weights`, which
            # update_state reads below.
            self.model._compile_loss(y, predictions, *weights)
        if has_custom_metrics(self.model):
            self.own.update(x, y, predictions, *weights)
        elif (compiled := self.model._compile_metrics) is not None:
            compiled.update_state(y, predictions, *weights)

    def values(self) -> Results:
        """Return the metrics by name, and reset.

        Raises: UsageError for a metric of several numbers
        """
        found = self.logs()
        self.reset()
        return {name: _number(name, value) for name, value in found.items()}

    def reset(self) -> None:
        """Begin again with the next step."""
        self.taken = 0

    def logs(self) -> dict[str, Any]:
        """Return the metrics by name as Keras logs them: numbers, or arrays of several."""
        if not self.taken:
            return {}
        has_own = has_custom_metrics(self.model)
        found = self.own.logs() if has_own else logs_of(self._metrics)
        return {name: logged(value) for name, value in found.items() if name != LOSS}

    @property
    def _metrics(self) -> list[Any]:
        return _metrics_of(self.model, self.calls)


@dataclass
class FitMetrics(KerasMetrics):
    """Metrics of a fit, whose callbacks also get those of several numbers.

    latest: all metrics of the evaluation that has ended last.
    outer: as of csrun.keras.custom_step.ReturnedValues.
    """

    latest: dict[str, Any] = field(default_factory=dict)
    outer: Mapping[str, str] = field(default_factory=dict)

    def values(self) -> Results:
        """Return the metrics of one number by name, and reset."""
        self.latest = self.logs()
        self.reset()
        return {name: value for name, value in self.latest.items() if isinstance(value, float)}

    def state(self) -> Array:
        """Return a checksum of the names of the metrics' variables, their values, and those of the
        last step; none before a step. Shapes: [1 + numbers]
        """
        if not self.taken:
            return np.empty(0)
        latest = tree_leaves(self._of_last_step)
        return np.concatenate([[self._checksum], *map(_numbers, [*self._variables, *latest])])

    def restore(self, state: Array) -> None:
        """Continue from a `state`, unless it is that of other metrics."""
        if not len(state):
            return
        self._reset_metrics()
        self._update([make() for make in self.zeros])  # which makes variables
        latest, spec = tree_flatten(self._of_last_step)
        arrays = [*map(_array, [*self._variables, *latest])]
        if len(state) != 1 + sum(each.size for each in arrays) or state[0] != self._checksum:
            return
        self.taken += 1
        ends = np.cumsum([1, *(each.size for each in arrays)])
        _, *parts = np.split(state, ends[:-1])
        found = [part.reshape(each.shape) for part, each in zip(parts, arrays, strict=True)]
        for variable, value in zip(self._variables, found, strict=False):
            variable.assign(value.astype(variable.dtype))
        self._of_last_step = tree_unflatten(found[len(self._variables) :], spec)

    @property
    def _of_last_step(self) -> Any:
        """Values of the last step, which are logged with those of metrics."""
        return self.own.returned or {}

    @_of_last_step.setter
    def _of_last_step(self, values: Any) -> None:
        self.own.returned = values or None

    @property
    def _checksum(self) -> int:
        return crc32(" ".join(variable.path for variable in self._variables).encode())

    @property
    def _variables(self) -> list[Any]:
        return [each for metric in self._metrics for each in metric.variables]


def _numbers(value: Any) -> Array:
    return np.ravel(_array(value)).astype(np.float64)


def _array(value: Any) -> Array:
    return np.asarray(keras.ops.convert_to_numpy(value))


def has_metrics(model: Any, calls: Sequence[MetricCall]) -> bool:
    """Return whether an evaluation has more values than the loss, once the loss has been called.

    calls: of metrics in the step.
    """
    return bool(_metrics_of(model, calls)) or has_custom_metrics(model)


def _metrics_of(model: Any, calls: Sequence[MetricCall]) -> list[Any]:
    """Metrics of `compile()`, of the losses of several outputs, and those that the model's class
    updates itself.
    """
    compiled = model._compile_metrics
    if has_custom_metrics(model):
        return [each for each in model.metrics if each is not model._loss_tracker]
    called = {id(call.metric): call.metric for call in calls}
    return [*([] if compiled is None else [compiled]), *_losses_of(model), *called.values()]


def _losses_of(model: Any) -> list[Any]:
    return [] if model._compile_loss is None else list(model._compile_loss.metrics)


def logged(value: Any) -> Any:
    """Return a value as Keras logs it: a number, or an array of several."""
    numbers = keras.ops.convert_to_numpy(value)
    return float(numbers.reshape(())) if numbers.size == 1 else numbers


def _number(name: str, value: Any) -> float:
    if not isinstance(value, float):
        raise UsageError(
            f"metric {name} has {value.size} numbers, and an evaluation reports one: give it an "
            "average, such as average='macro'"
        )
    return value


def warn_of_layer_metrics(model: Any, calls: Sequence[MetricCall]) -> None:
    """Warn of metrics of layers that the step does not update, which are not computed."""
    updated = {id(call.metric) for call in calls}
    for layer in model._flatten_layers(include_self=not has_custom_metrics(model)):
        for metric in layer._metrics:
            if id(metric) not in updated:
                log.warning(
                    f"metric {metric.name} of layer {layer.path or layer.name} is not computed: "
                    "update it in call() or compute_loss(), or give it to compile(metrics=...)"
                )
