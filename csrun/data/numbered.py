"""Batches of another library that are read by their number."""

from dataclasses import dataclass
from sys import maxsize

import numpy as np

from csrun.data.adapters import RandomAccess
from csrun.data.gather import Rows
from csrun.data.indexed import Indexed
from csrun.data.order import Range
from csrun.data.origins import Origin, WholeBatch
from csrun.data.samples import Batch, as_batch
from csrun.data.stage_clock import StageClock

STAGE = "source"


def batches_of(items: RandomAccess) -> Indexed:
    """Items that are whole batches as an indexable chain, in which each is a sample of its own."""
    order = Range(items.length)
    samples = NumberedBatches(items)
    return Indexed(samples, order, batch_size=1, batches=order, reader=ItemReader())


@dataclass(frozen=True)
class NumberedBatches:
    """The items, each of which counts as one sample."""

    items: RandomAccess

    def __len__(self) -> int:
        """How many."""
        return maxsize if self.items.length is None else self.items.length

    def each(self, rows: Rows, clock: StageClock) -> list[Batch]:
        """The items with these numbers."""
        with clock.timed(STAGE):
            return [as_batch(self.items[row]) for row in rows.tolist()]

    def origin(self, row: int) -> Origin:
        """Where an item comes from: its number."""
        return WholeBatch(row)


@dataclass(frozen=True)
class ItemReader:
    """Takes an item as the batch of its number; of a further pass, the item that comes then."""

    def read(self, chain: Indexed, number: int, clock: StageClock) -> Batch:
        """The batch with this number."""
        (batch,) = chain.samples.each(np.array([number]), clock)
        return batch
