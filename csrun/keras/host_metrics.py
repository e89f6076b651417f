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
    """

    model: Any = None
    spec: TreeSpec | None = None
    taken: int = field(default=0)

    @classmethod
    def of(cls, model: KerasModel, labels: tuple[Any, ...], outputs: Any) -> Self:
        """Return the metrics of a model with these traced labels and outputs."""
        leaves, spec = tree_flatten((labels, outputs))
        names = tuple(output_name(leaf.value) for leaf in leaves)
        return cls(dict, names, model=model.keras, spec=spec)

    def take(self, result: StepResult) -> None:
        """Update the metrics by one step's outputs."""
        compiled = self.model._compile_metrics
        if compiled is None:
            return
        assert self.spec is not None, "given with the model"
        if not self.taken:
            compiled.reset_state()
        self.taken += 1
        arrays = [keras.ops.convert_to_tensor(result.outputs[name]) for name in self.outputs]
        (y, *weights), predictions = tree_unflatten(arrays, self.spec)
        compiled.update_state(y, predictions, *weights)

    def values(self) -> Results:
        """Return the metrics by name, and reset.

        Raises: UsageError for a metric of several numbers
        """
        if not self.taken:
            return {}
        self.taken = 0
        found = self.model._compile_metrics.result()
        return {name: _number(name, value) for name, value in found.items() if name != LOSS}


def _number(name: str, value: Any) -> float:
    numbers = keras.ops.convert_to_numpy(value)
    if numbers.size != 1:
        raise UsageError(
            f"metric {name} has {numbers.size} numbers, and an evaluation reports one: give it an "
            "average, such as average='macro'"
        )
    return float(numbers.reshape(()))


def warn_of_layer_metrics(model: Any) -> None:
    """Warn of metrics that layers update in their call, which are not computed."""
    for layer in model._flatten_layers():
        for metric in layer._metrics:
            log.warning(
                f"metric {metric.name} of layer {layer.path or layer.name} is not computed: give "
                "it to compile(metrics=...), of an output of the model"
            )
