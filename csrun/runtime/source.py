"""Where the wafer takes its batches from: rings of streamers, or the dataset itself."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from csrun.data import Dataset
from csrun.executable import InputSpec
from csrun.executable.bind import Batch
from csrun.runtime.batches import fill
from csrun.runtime.wire.ring import END_OF_DATA, RingReader


class BatchSource(Protocol):
    """Global batches in order, one at a time."""

    def take(self) -> tuple[Batch, int] | None:
        """The next batch and its valid rows; None at the end of the data."""

    def release(self) -> None:
        """The batch taken last is no longer read."""


class RingSource:
    """Batches of several streamers, taken in turn: batch k comes from streamer k mod N."""

    def __init__(self, rings: Sequence[RingReader], first_batch: int) -> None:
        self._rings = rings
        self._turn = first_batch % len(rings)

    def take(self) -> tuple[Batch, int] | None:
        """The next batch and its valid rows; None at the end of the data."""
        slot = self._rings[self._turn].take()
        rows = int(slot.header[0])
        return None if rows == END_OF_DATA else (slot.arrays, rows)

    def release(self) -> None:
        """Give the slot back and go on to the next streamer."""
        self._rings[self._turn].release()
        self._turn = (self._turn + 1) % len(self._rings)


class InProcessSource:
    """The dataset of this process, through one slot with the same checks and conversions."""

    def __init__(self, dataset: Dataset, inputs: tuple[InputSpec, ...], first_batch: int) -> None:
        self._inputs = inputs
        self._slot = tuple(np.empty(spec.shape, spec.dtype) for spec in inputs)
        self._index = first_batch
        self._deliveries = dataset.deliveries(first_batch, 1)
        self._clock = dataset.clock

    def take(self) -> tuple[Batch, int] | None:
        """The next batch and its valid rows; None at the end of the data."""
        delivery = next(self._deliveries, None)
        if delivery is None:
            return None
        rows = fill(self._slot, delivery, self._inputs, self._index, self._clock)
        return self._slot, rows

    def release(self) -> None:
        """Go on to the next batch."""
        self._index += 1
