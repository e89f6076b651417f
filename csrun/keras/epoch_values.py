"""Loss and metrics of an epoch in progress, which a checkpoint has for the fit that resumes."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from csrun.executable.arrays import Array
from csrun.keras.host_metrics import FitMetrics
from csrun.records.checkpoints import Checkpoint
from csrun.runtime.step.results import Mean, StepResult

#: Tensor of a checkpoint, unless the epoch's end is done: total and count of the epoch's losses,
#: then the state of its metrics, as the bits of float64s, since floats of a checkpoint are weights.
EPOCH_TENSOR = "fit/epoch"
#: Checkpoint tensor that marks weights set by callbacks at the end of a fit; averages do not
#: replace them.
FINAL_TENSOR = "fit/final_weights"


class EpochValues:
    """Loss and metrics of the steps of an epoch so far. metrics: of the model, if it has any.

    is_open: the epoch has begun, and its evaluation and callbacks are not done.
    """

    def __init__(self, metrics: FitMetrics | None) -> None:
        self._metrics, self._loss = metrics, Mean()
        self.is_open = False

    @property
    def takes_results(self) -> bool:
        """Return whether there are metrics, which need the results of each step."""
        return self._metrics is not None

    def begin(self) -> None:
        """Begin an epoch."""
        self._loss, self.is_open = Mean(), True
        if self._metrics is not None:
            self._metrics.reset()

    def add_loss(self, loss: float) -> None:
        """Add the loss of a step."""
        self._loss += Mean(loss, 1)

    def take(self, result: StepResult) -> None:
        """Update the metrics by a step."""
        assert self._metrics is not None, "takes_results"
        self._metrics.take(result)

    def logs(self) -> dict[str, Any]:
        """Return loss and metrics by name, as Keras logs them."""
        metrics = {} if self._metrics is None else self._metrics.logs()
        return {"loss": self._loss.value, **metrics}

    # In checkpoints.

    def tensors(self) -> Mapping[str, Array]:
        """Return the values of an open epoch as a tensor of a checkpoint."""
        if not self.is_open:
            return {}
        metrics = () if self._metrics is None else self._metrics.state()
        found = np.array([self._loss.total, self._loss.count, *metrics])
        return {EPOCH_TENSOR: found.view(np.int64)}

    def restore(self, found: Checkpoint) -> None:
        """Continue an epoch that was open when a checkpoint was written."""
        total, count, *metrics = found.tensor(EPOCH_TENSOR).view(np.float64)
        self.begin()
        self._loss = Mean(float(total), float(count))
        if self._metrics is not None:
            self._metrics.restore(np.array(metrics))


def is_open_in(found: Checkpoint) -> bool:
    """Return whether the end of a checkpoint's last epoch is not done."""
    return EPOCH_TENSOR in found.manifest.tensors


def has_final_weights(found: Checkpoint) -> bool:
    """Return whether callbacks have set a checkpoint's weights at the end of a fit."""
    return FINAL_TENSOR in found.manifest.tensors
