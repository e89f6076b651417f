"""Samples in an order, a batch at a time: any batch can be read without those before it.

An order is pure arithmetic on positions, no data touched: it is asked for the elements at some
positions of one pass (epoch) over it. Element e of pass p over a `Range` of n has the number
p·n + e, so that a number names both what is read and in which pass; what lies below (the batches of
a shuffled data set) needs both.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, takewhile
from sys import maxsize
from typing import Protocol

import numpy as np

from csrun.data.adapters.grain import RandomAccess
from csrun.data.delivery import Delivery, LazyBatch, arrays_of, require_numbers
from csrun.data.errors import DataError, Origin, WholeBatch
from csrun.data.formats.base import Sample
from csrun.data.operators import StageClock
from csrun.data.prefetch import read_ahead
from csrun.data.samples import Batch, Rows
from csrun.data.structure import Elements

ITEM_STAGE = "source"  # of what is read by number from another library


class Order(Protocol):
    """A sequence of element numbers. `length` is None for an endless one."""

    @property
    def length(self) -> int | None:
        """Elements of one pass."""

    def at(self, epoch: int, positions: Rows) -> Rows:
        """The elements at these positions of pass `epoch`: a new int64 array of as many."""


@dataclass(frozen=True)
class Range:
    """Elements in their own order."""

    length: int | None

    def at(self, epoch: int, positions: Rows) -> Rows:
        """The elements at these positions of pass `epoch`."""
        return positions + epoch * (self.length or 0)


class Samples(Protocol):
    """So many samples, by their numbers."""

    def __len__(self) -> int:
        """How many."""

    def each(self, rows: Rows, clock: StageClock) -> list[Sample]:
        """The samples with these numbers, one by one."""

    def origin(self, row: int) -> Origin:
        """Where a sample comes from."""


class BatchReader(Protocol):
    """Makes the batch of a number."""

    def read(self, chain: "Indexed", number: int, clock: StageClock) -> Batch | LazyBatch:
        """The batch."""


@dataclass(frozen=True)
class Indexed:
    """Samples, and, once batched, batches of them.

    order: of samples; batches: the order of the batches cut from it, and reader: what makes one of
    them, both None before `batch`. length: of the source, all samples of a pass.
    """

    samples: Samples
    order: Order
    batch_size: int = 0
    drop_remainder: bool = False
    batches: Order | None = None
    reader: BatchReader | None = None

    @property
    def cardinality(self) -> int | None:
        """Batches of the data set, None when endless."""
        return self._batched()[0].length

    @property
    def outer_order(self) -> Order:
        """The order of what an operation on the data set sees: samples, or batches."""
        return self.batches or self.order

    def ordered(self, order: Order) -> "Indexed":
        """The same elements in another order."""
        if self.batches is None:
            return replace(self, order=order)
        return replace(self, batches=order)

    def deliveries(
        self, start: int, stride: int, threads: int, ahead: int, clock: StageClock
    ) -> Iterator[Delivery]:
        """The batches at positions start, start + stride, … of the data set.

        Several threads make a batch each; otherwise one thread reads `ahead` batches, or none does.
        """
        positions: Iterator[int] = count(start, stride)
        if self.cardinality is not None:  # which may grow, of an order that is told pass by pass
            positions = takewhile(lambda position: position < (self.cardinality or 0), positions)
        if threads == 1 and not ahead:
            return (self._deliver(position, clock) for position in positions)

        def deliver_whole(position: int) -> Delivery:
            delivery = self._deliver(position, clock)
            return Delivery(arrays_of(delivery.batch, clock), delivery.origins)

        return read_ahead(positions, deliver_whole, threads, max(ahead, threads))

    def _deliver(self, position: int, clock: StageClock) -> Delivery:
        number = self.number_of(position)
        return Delivery(self.read(number, clock), lambda: self.origins(number))

    def number_of(self, position: int) -> int:
        """The number, in the order of reading, of the batch at a position of the data set."""
        return int(self._batched()[0].at(0, np.array([position]))[0])

    def read(self, number: int, clock: StageClock) -> Batch | LazyBatch:
        """The batch with a number."""
        return self._batched()[1].read(self, number, clock)

    def read_few(self, count: int) -> Batch | LazyBatch:
        """A batch of the first samples, so many, as a batch of any size is made."""
        return replace(self, batch_size=count).read(0, StageClock())

    @property
    def largest_batch(self) -> int:
        """Samples of the largest batch."""
        samples = self.order.length
        return self.batch_size if samples is None else min(self.batch_size, samples)

    def rows(self, number: int) -> Rows:
        """The samples of a batch, by their numbers."""
        start, stop, epoch = self._extent(number)
        return self.order.at(epoch, np.arange(start, stop)) % len(self.samples)

    def origins(self, number: int) -> list[Origin]:
        """Where the samples of a batch come from."""
        return [self.samples.origin(row) for row in self.rows(number).tolist()]

    def _batched(self) -> tuple[Order, BatchReader]:
        if self.batches is None or self.reader is None:
            raise DataError("the data set has no batches: call .batch(batch_size) in input_fn")
        return self.batches, self.reader

    def _extent(self, number: int) -> tuple[int, int, int]:
        """Sample positions of a batch, and the pass over the samples that it belongs to."""
        samples, epoch = self.order.length, 0
        if samples is None:
            start = number * self.batch_size
            return start, start + self.batch_size, epoch
        whole, rest = divmod(samples, self.batch_size)
        epoch, number = divmod(number, whole + (rest > 0 and not self.drop_remainder))
        start = number * self.batch_size
        return start, min(start + self.batch_size, samples), epoch


def batches_of(items: RandomAccess, elements: Elements) -> Indexed:
    """Items of another library that are whole batches: each is a sample of its own here."""
    order = Range(items.length)
    samples = NumberedItems(items, elements)
    return Indexed(samples, order, batch_size=1, batches=order, reader=ItemReader())


@dataclass(frozen=True)
class NumberedItems:
    """Items of another library, each of which counts as one sample."""

    items: RandomAccess
    elements: Elements

    def __len__(self) -> int:
        return maxsize if self.items.length is None else self.items.length

    def each(self, rows: Rows, clock: StageClock) -> list[Batch]:
        """The items with these numbers."""
        with clock.timed(ITEM_STAGE):
            items = (self.items[row] for row in rows.tolist())
            return [require_numbers(self.elements.taken(item)) for item in items]

    def origin(self, row: int) -> Origin:
        """Where an item comes from: its number."""
        return WholeBatch(row)


@dataclass(frozen=True)
class ItemReader:
    """Takes an item as the batch of its number; of a further pass, the item that comes then."""

    def read(self, chain: Indexed, number: int, clock: StageClock) -> Batch:
        """The batch with this number, which may lie beyond the length: no remainder is taken."""
        (batch,) = chain.samples.each(np.array([number]), clock)
        return batch


def nonempty(source: Indexed) -> Indexed:
    """The source.

    Raises: DataError for one without a batch
    """
    if source.cardinality == 0:
        raise DataError(
            f"the data set is empty: {source.order.length} samples of {len(source.samples)} "
            f"give no batch of {source.batch_size}: lower batch_size, keep the remainder, or "
            "use fewer shards"
        )
    return source
