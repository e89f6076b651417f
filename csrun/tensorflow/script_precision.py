"""Mixed precision requested by a script: Keras's policies, and TensorFlow's loss scales.

A 16-bit policy selects the format in which csrun stores numbers. TensorFlow's graph stays float32,
because csrun rounds by its own rules.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import msgspec

from csrun.base.half_formats import HalfFormat, storage_format
from csrun.base.precision_names import CB16, MIXED
from csrun.nn.optimizer import Learning

log = logging.getLogger("csrun")

HALF_POLICIES = ("mixed_float16", "mixed_bfloat16")
#: Option of csrun's optimizers by the name in TensorFlow's configuration of a loss scale.
_SCALE_OPTIONS = {
    "initial_loss_scale": "initial_loss_scale",
    "increment_period": "steps_per_increase",
    "min_loss_scale": "min_loss_scale",
    "max_loss_scale": "max_loss_scale",
    "overflow_tolerance": "overflow_tolerance",
}


@dataclass
class Policies:
    """16-bit policies: the global one, and the last one created for layers."""

    of_all: str | None = None
    of_layers: str | None = None

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Context manager that records only policies created within it."""
        self.of_layers = None
        yield

    @property
    def name(self) -> str | None:
        """The policy of a model_fn that was recorded."""
        return self.of_layers or self.of_all


policies = Policies()


@dataclass(frozen=True)
class StorageChoice:
    """Choice of the 16-bit format of a graph.

    configured: the run's own, if any.
    follows: whether a script's policy selects one.
    cb16: whether it is CB16.
    """

    configured: HalfFormat | None = None
    follows: bool = True
    cb16: bool = False

    def of(self, policy: str | None) -> HalfFormat | None:
        """Return the format, and log the choice of a policy."""
        if policy is None or not self.follows:
            return self.configured
        found = storage_format(f"{MIXED}{CB16}" if self.cb16 else policy)
        if found is not None:
            log.info(f"Keras's {policy}: numbers are stored as {found.text}")
        return found


@dataclass
class LossScales:
    """Loss scales of the optimizers of one graph, which csrun applies itself."""

    found: list[Any] = field(default_factory=list)

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Context manager that records loss scales, and leaves the loss unscaled."""
        from tensorflow.python.training.experimental import loss_scale_optimizer

        scaled = loss_scale_optimizer.MixedPrecisionLossScaleOptimizer

        def compute(this: Any, loss: Any, *arguments: Any, **options: Any) -> Any:
            self.found.append(this._loss_scale)
            return this._optimizer.compute_gradients(loss, *arguments, **options)

        def apply(this: Any, *arguments: Any, **options: Any) -> Any:
            return this._optimizer.apply_gradients(*arguments, **options)

        with (
            patch.object(scaled, "compute_gradients", compute),
            patch.object(scaled, "apply_gradients", apply),
        ):
            yield

    def applied(self, optimizer: Learning) -> Learning:
        """Return the optimizer with the loss scale.

        Raises: OptimizerError for a scale out of range
        """
        if not self.found:
            return optimizer
        given = self.found[-1].get_config()
        if (number := given.get("loss_scale_value")) is not None:
            return msgspec.structs.replace(optimizer, loss_scaling_factor=float(number))
        options = {ours: given[name] for name, ours in _SCALE_OPTIONS.items() if name in given}
        return msgspec.structs.replace(optimizer, loss_scaling_factor="dynamic", **options)
