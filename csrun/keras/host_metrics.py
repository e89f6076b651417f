"""Metrics of a Keras model's `compile()`, computed on the host from an evaluation's outputs."""

import logging
from dataclasses import dataclass, field
from typing import Any, Self

from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from csrun.base.errors import UsageError
from csrun.keras.torch_backend import keras
from csrun.keras.variables_module import KerasModel
from csrun.pytorch.lower.to_cirh import output_name
from csrun.runtime.step.results import HostCall, StepResult
from csrun.runtime.wire.messages import Results

log = logging.getLogger("csrun")

LOSS = "loss"  # which the run has itself


@dataclass
class KerasMetrics(HostCall):
    """Metrics over the steps so far.

    outputs: names of labels, sample weights and predictions.
    takes_arrays: metrics of several numbers, too, which are in `latest` only.
    latest: all metrics of the evaluation that has ended last.
    """

    model: Any = None
    spec: TreeSpec | None = None
    taken: int = field(default=0)
    takes_arrays: bool = field(default=False)
    latest: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: KerasModel, labels: tuple[Any, ...], outputs: Any) -> Self:
        """Return the metrics of a model with these traced labels and outputs."""
        leaves, spec = tree_flatten((labels, outputs))
        names = tuple(output_name(leaf.value) for leaf in leaves)
        return cls(dict, names, model=model.keras, spec=spec)

    def take(self, result: StepResult) -> None:
        """Update the metrics by one step's outputs."""
        if not has_metrics(self.model):
            return
        assert self.spec is not None, "given with the model"
        if not self.taken:
            for metric in _metrics_of(self.model):
                metric.reset_state()
        self.taken += 1
        arrays = [keras.ops.convert_to_tensor(result.outputs[name]) for name in self.outputs]
        (y, *weights), predictions = tree_unflatten(arrays, self.spec)
        if (compiled := self.model._compile_metrics) is not None:
            compiled.update_state(y, predictions, *weights)
        if _losses_of(self.model):
            self.model._compile_loss(y, predictions, *weights)  # which updates its metrics

    def values(self) -> Results:
        """Return the metrics of one number by name, and reset.

        Raises: UsageError for a metric of several numbers, unless these are taken
        """
        found = self.latest = self.logs()
        self.reset()
        if self.takes_arrays:
            found = {name: value for name, value in found.items() if isinstance(value, float)}
        return {name: _number(name, value) for name, value in found.items()}

    def reset(self) -> None:
        """Begin again with the next step."""
        self.taken = 0

    def logs(self) -> dict[str, Any]:
        """Return the metrics by name as Keras logs them: numbers, or arrays of several."""
        if not self.taken:
            return {}
        found: dict[str, Any] = {}
        for metric in _metrics_of(self.model):
            value = metric.result()
            found |= value if isinstance(value, dict) else {metric.name: value}
        return {name: _logged(value) for name, value in found.items() if name != LOSS}


def has_metrics(model: Any) -> bool:
    """Return whether an evaluation has more values than the loss, once the loss has been called."""
    return bool(_metrics_of(model))


def _metrics_of(model: Any) -> list[Any]:
    """Metrics of `compile()`, and of the losses of several outputs."""
    compiled = model._compile_metrics
    return [*([] if compiled is None else [compiled]), *_losses_of(model)]


def _losses_of(model: Any) -> list[Any]:
    return [] if model._compile_loss is None else list(model._compile_loss.metrics)


def _logged(value: Any) -> Any:
    numbers = keras.ops.convert_to_numpy(value)
    return float(numbers.reshape(())) if numbers.size == 1 else numbers


def _number(name: str, value: Any) -> float:
    if not isinstance(value, float):
        raise UsageError(
            f"metric {name} has {value.size} numbers, and an evaluation reports one: give it an "
            "average, such as average='macro'"
        )
    return value


def warn_of_layer_metrics(model: Any) -> None:
    """Warn of metrics that layers update in their call, which are not computed."""
    for layer in model._flatten_layers():
        for metric in layer._metrics:
            log.warning(
                f"metric {metric.name} of layer {layer.path or layer.name} is not computed: give "
                "it to compile(metrics=...), of an output of the model"
            )
