"""Batches that the chief makes and sends itself, each before its step is ordered.

A PyTorch loop may compute on tensors that are not in the data set. The batch of such a step is made
in the process of the loop.
"""

from collections import deque
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from csrun.base.run_config import RunSettings
from csrun.executable import InputSpec
from csrun.executable.arrays import Array, Batch
from csrun.runtime.step.batch_maker import (
    BatchName,
    count_labels,
    require_finite,
    require_in_range,
    require_known,
)
from csrun.runtime.step.source import GlobalBatch
from csrun.runtime.wire.messages import StreamerUse
from csrun.runtime.wire.ring import BatchCounts


def count_pushed(
    arrays: Sequence[npt.NDArray[np.generic]],
    inputs: tuple[InputSpec, ...],
    number: int,
    settings: RunSettings,
) -> BatchCounts:
    """Count the labels and rows of the batch of this number, with the checks of a streamer.

    Raises: CsrunError for a label or an index out of range, and for NaN and Inf if requested;
    ValueError for another shape than an input's
    """
    for array, spec in zip(arrays, inputs, strict=True):
        if array.shape != spec.shape:
            raise ValueError(f"{spec.name}: got shape {array.shape}, not {spec.shape}")
    name = BatchName(number, inputs[0].shape[0], None)
    at_least_rows: list[Array] = [np.atleast_1d(array) for array in arrays]
    counts = count_labels(at_least_rows, inputs, name)
    require_known(at_least_rows, inputs, name)
    require_in_range(at_least_rows, inputs, name)
    if settings.check_numerics:
        require_finite(at_least_rows, inputs, name)
    return BatchCounts(name.size, counts)


class PushedSource:
    """Pushed batches of a program in this process."""

    def __init__(self, inputs: tuple[InputSpec, ...], settings: RunSettings) -> None:
        self._inputs, self._settings = inputs, settings
        self._waiting: deque[GlobalBatch] = deque()
        self._count = 0

    def push(self, arrays: Batch) -> None:
        """Add the next batch; its arrays must not be written until it is taken."""
        made = count_pushed(arrays, self._inputs, self._count, self._settings)
        given = zip(arrays, self._inputs, strict=True)
        converted = tuple(np.asarray(array, spec.dtype, order="C") for array, spec in given)
        self._waiting.append(GlobalBatch(converted, made))
        self._count += 1

    def take(self) -> GlobalBatch | None:
        """Return the next batch, the same one until it is released; None if there is none."""
        return self._waiting[0] if self._waiting else None

    def release(self) -> None:
        """Release the batch taken last."""
        self._waiting.popleft()

    def used(self) -> tuple[StreamerUse, ...]:
        """Return no costs: there is no streamer."""
        return ()

    def begin(self, first: int, last: int | None) -> None:
        """Do nothing: a pushed batch has no number in a data set."""

    def stage(self, number: int) -> str | None:
        """Return None: a pushed batch has no stages."""
        return None
