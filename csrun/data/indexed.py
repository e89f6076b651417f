"""Indexed chains: samples in an order, of which any batch can be read without those before it.

An order is pure arithmetic on positions, without data: it returns the elements at some positions of
one pass (epoch). Element e of pass p over a `Range` of n has the number p·n + e, so that a number
identifies both the element and the pass; the source (as the batches of a shuffled data set) needs
both.
"""

from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from itertools import count, takewhile
from sys import maxsize
from typing import Protocol

import numpy as np

from csrun.data.adapters.grain import RandomAccess
from csrun.data.delivery import Delivery, LazyBatch, arrays_of, require_numbers
from csrun.data.errors import BatchOrigin, DataError, Origin, PassEndedError
from csrun.data.input_operators import StageClock
from csrun.data.prefetch import read_ahead
from csrun.data.samples import Batch, Rows, Samples
from csrun.data.structure import Elements

ITEM_STAGE = "source"  # stage of items of another library
FEW_SAMPLES, MANY_SAMPLES = 2, 1024  # of a batch whose size is estimated, and that is worth it


class Order(Protocol):
    """Sequence of element numbers; `length` is None if endless."""

    @property
    def length(self) -> int | None:
        """Elements per pass."""

    def at(self, epoch: int, positions: Rows) -> Rows:
        """Return the elements at these positions of a pass, as a new int64 array."""


@dataclass(frozen=True)
class Range:
    """Elements in natural order."""

    length: int | None

    def at(self, epoch: int, positions: Rows) -> Rows:
        """Return the elements at these positions of a pass."""
        return positions + epoch * (self.length or 0)


class BatchReader(Protocol):
    """Reader of batches by number."""

    def read(self, chain: "Indexed", number: int, clock: StageClock) -> Batch | LazyBatch:
        """Read a batch."""


@dataclass(frozen=True)
class Indexed:
    """Samples in an order and, after `batch`, batches of them.

    order: of samples. batches, reader: order and reader of the batches, None before `batch`.
    length: samples per pass of the source. parts: equal parts that a batch is read in, each as a
        batch of its own; the parts of a batch have consecutive numbers.
    """

    samples: Samples
    order: Order
    batch_size: int = 0
    drop_remainder: bool = False
    batches: Order | None = None
    reader: BatchReader | None = None
    parts: int = 1

    @property
    def cardinality(self) -> int | None:
        """Number of batches, None if endless."""
        whole = self._batched()[0].length
        return None if whole is None else whole * self.parts

    @property
    def outer_order(self) -> Order:
        """Order of the elements: batches after `batch`, else samples."""
        return self.batches or self.order

    def ordered(self, order: Order) -> "Indexed":
        """Return the same elements in another order."""
        if self.batches is None:
            return replace(self, order=order)
        return replace(self, batches=order)

    def in_parts(self, parts: int) -> "Indexed | None":
        """Return the equal parts of all batches; None if there is an incomplete batch, or a batch
        is read as a whole.
        """
        samples = self.order.length
        is_complete = self.drop_remainder or samples is None or samples % self.batch_size == 0
        can_split = self.reader is not None and self.batch_size % parts == 0 and is_complete
        return replace(self, parts=parts) if can_split else None

    def deliveries(
        self, start: int, stride: int, threads: int, ahead: int, clock: StageClock
    ) -> Iterator[Delivery]:
        """Yield the batches at positions start, start + stride, … of the data set.

        With `threads`, several batches are made at a time; else one thread reads `ahead` batches.
        """
        positions: Iterator[int] = count(start, stride)
        if self.cardinality is not None:  # may grow if the order is defined pass by pass
            positions = takewhile(lambda position: position < (self.cardinality or 0), positions)
        if threads == 1 and not ahead:
            return _until_end(self._deliver(position, clock) for position in positions)

        def deliver_whole(position: int) -> Delivery:
            delivery = self._deliver(position, clock)
            return Delivery(arrays_of(delivery.batch, clock), delivery.origins)

        return _until_end(read_ahead(positions, deliver_whole, threads, max(ahead, threads)))

    def _deliver(self, position: int, clock: StageClock) -> Delivery:
        number = self.number_of(position)
        return Delivery(self.read(number, clock), lambda: self.origins(number))

    def number_of(self, position: int) -> int:
        """Return the number of the batch at a position of the data set."""
        position, part = divmod(position, self.parts)
        return int(self._batched()[0].at(0, np.array([position]))[0]) * self.parts + part

    def read(self, number: int, clock: StageClock) -> Batch | LazyBatch:
        """Read the batch with a number."""
        return self._batched()[1].read(self, number, clock)

    def estimated_batch_bytes(self, has_functions: bool) -> int | None:
        """Estimate the bytes of the largest batch from a few samples; None if that is not possible,
        or if a function of the user would be called for a batch of few samples.
        """
        samples = self.order.length
        largest = self.batch_size if samples is None else min(self.batch_size, samples)
        if self.reader is None or largest < (MANY_SAMPLES if has_functions else FEW_SAMPLES):
            return None
        clock = StageClock()
        try:
            few = replace(self, batch_size=FEW_SAMPLES).read(0, clock)
            batch = arrays_of(few, clock)
        except Exception:  # left to the first batch to report
            return None
        if any(array.shape[:1] != (FEW_SAMPLES,) for array in batch):
            return None  # the function's result does not scale with the batch
        return sum(array.nbytes for array in batch) * largest // FEW_SAMPLES

    def rows(self, number: int) -> Rows:
        """Sample numbers of a batch."""
        start, stop, epoch = self._extent(number)
        return self.order.at(epoch, np.arange(start, stop)) % len(self.samples)

    def origins(self, number: int) -> list[Origin]:
        """Origins of the samples of a batch."""
        return [self.samples.origin(row) for row in self.rows(number).tolist()]

    def _batched(self) -> tuple[Order, BatchReader]:
        if self.batches is None or self.reader is None:
            raise DataError("the data set has no batches: call .batch(batch_size) in input_fn")
        return self.batches, self.reader

    def _extent(self, number: int) -> tuple[int, int, int]:
        """Return the sample positions of a batch, and its pass."""
        samples, epoch, size = self.order.length, 0, self.batch_size // self.parts
        if samples is None:
            return number * size, (number + 1) * size, epoch
        whole, rest = divmod(samples, self.batch_size)
        batches = whole + (rest > 0 and not self.drop_remainder)
        epoch, number = divmod(number, batches * self.parts)
        return number * size, min((number + 1) * size, samples), epoch


def _until_end(deliveries: Generator[Delivery]) -> Generator[Delivery]:
    """Yield deliveries up to the end of a pass, where that is found as it is read."""
    try:
        yield from deliveries
    except PassEndedError:
        return
    finally:
        deliveries.close()


def batches_of(items: RandomAccess, elements: Elements) -> Indexed:
    """Return a chain of items of another library that are batches."""
    order = Range(items.length)
    samples = NumberedItems(items, elements)
    return Indexed(samples, order, batch_size=1, batches=order, reader=ItemReader())


@dataclass(frozen=True)
class NumberedItems:
    """Items of another library, each counted as one sample."""

    items: RandomAccess
    elements: Elements

    def __len__(self) -> int:
        return maxsize if self.items.length is None else self.items.length

    def each(self, rows: Rows, clock: StageClock) -> list[Batch]:
        """Return items by number."""
        with clock.timed(ITEM_STAGE):
            items = (self.items[row] for row in rows.tolist())
            return [require_numbers(self.elements.taken(item)) for item in items]

    def origin(self, row: int) -> Origin:
        """Origin of an item: its number."""
        return BatchOrigin(row)


@dataclass(frozen=True)
class ItemReader:
    """Reader of items as batches; numbers beyond the length belong to further passes."""

    def read(self, chain: Indexed, number: int, clock: StageClock) -> Batch:
        """Read a batch; a number beyond the length is passed on unchanged."""
        (batch,) = chain.samples.each(np.array([number]), clock)
        return batch


def nonempty(source: Indexed) -> Indexed:
    """Return the source.

    Raises: DataError if it has no batch
    """
    if source.cardinality == 0:
        raise DataError(
            f"the data set has no batch: {source.order.length} of {len(source.samples)} samples "
            f"do not fill a batch of {source.batch_size}: lower batch_size, keep the remainder, or "
            "use fewer shards"
        )
    return source
