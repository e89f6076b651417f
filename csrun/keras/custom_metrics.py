"""Metrics that the class of a Keras model computes itself, by its compute_metrics."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

from csrun.base.errors import UsageError
from csrun.keras.torch_backend import keras

log = logging.getLogger("csrun")

_METHODS = ("compute_metrics", "get_metrics_result")


def has_custom_metrics(model: Any) -> bool:
    """Return whether the model's class overrides how metrics are computed."""
    methods = (getattr(type(model), name) for name in _METHODS)
    return any(method.__module__.split(".")[0] != "keras" for method in methods)


def logs_of(metrics: Iterable[Any]) -> dict[str, Any]:
    """Return the results of metrics by name; a metric may have several."""
    found: dict[str, Any] = {}
    for metric in metrics:
        value = metric.result()
        found |= value if isinstance(value, dict) else {metric.name: value}
    return found


class CustomMetrics:
    """Calls of a model's compute_metrics in the chief, which has no current weights.

    updated: metrics that the step updates, too.
    returned: by the last call; None before it.
    """

    def __init__(self, model: Any, updated: Iterable[Any]) -> None:
        self._model, self._updated = model, set(map(id, updated))
        self._assigned: set[int] = set()  # variables that the calls have written
        self.returned: Any = None

    def reset(self) -> None:
        """Reset all metrics of the model."""
        self.returned = None
        if has_custom_metrics(self._model):
            self._model.reset_metrics()

    def update(self, x: Any, y: Any, predictions: Any, sample_weight: Any = None) -> None:
        """Call compute_metrics with the values of a step.

        Raises: UsageError if it reads a weight
        """
        is_first = not self._assigned
        with self.watched(), torch.no_grad():
            self.returned = self._model.compute_metrics(
                x, y, predictions, sample_weight=sample_weight
            )
        for metric in self._not_updated() if is_first else ():
            log.warning(
                f"metric {metric.name} is not computed: {type(self._model).__name__}."
                "compute_metrics does not update it: update it there, from an output of the model"
            )

    def logs(self) -> dict[str, Any]:
        """Return the metrics by name, without those that compute_metrics does not update.

        Source: keras.Model: what it returned counts if it has other names than the metrics
        """
        found = self._model.get_metrics_result()
        if self.returned is not None and self.returned.keys() != found.keys():
            found = self.returned
        missing = logs_of(self._not_updated()).keys()
        return {name: value for name, value in found.items() if name not in missing}

    def _not_updated(self) -> list[Any]:
        """Return metrics whose variables the calls have not written."""
        return [
            metric
            for metric in self._model.metrics
            if metric is not self._model._loss_tracker
            and id(metric) not in self._updated
            and metric.variables
            and not self._assigned & {id(variable) for variable in metric.variables}
        ]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Context manager that refuses reads of weights, and notes writes of variables.

        Raises: UsageError
        """
        kind: Any = keras.Variable
        weights = {id(each): each.path for each in self._model.weights}
        value, assign = kind.value, kind.assign

        def read(variable: Any) -> Any:
            if (path := weights.get(id(variable))) is not None:
                raise UsageError(
                    f"{type(self._model).__name__}.compute_metrics reads the weight {path}, which "
                    "the chief does not have: have call() return the value as an output, or "
                    "compute it in a callback"
                )
            return value.fget(variable)

        def write(variable: Any, *new: Any, **options: Any) -> Any:
            self._assigned.add(id(variable))
            return assign(variable, *new, **options)

        with ExitStack() as stack:
            stack.enter_context(patch.object(kind, "value", property(read, value.fset)))
            stack.enter_context(patch.object(kind, "assign", write))
            yield
