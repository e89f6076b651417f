"""Samples in an order, a batch at a time: any batch can be read without those before it."""

from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from csrun.data.errors import DataError, require
from csrun.data.lazy_batch import LazyBatch, mapped
from csrun.data.operators import Operator
from csrun.data.order import FirstPass, Numbers, Order, Range
from csrun.data.origins import Origin
from csrun.data.padding import Padding, stacked
from csrun.data.samples import (
    ArraySamples,
    Batch,
    CachedSamples,
    JoinedSamples,
    MapFunction,
    Samples,
    read_only,
)
from csrun.data.stage_clock import StageClock


class BatchReader(Protocol):
    """Makes the batch of a number."""

    def read(self, chain: "Indexed", number: int, clock: StageClock) -> Batch | LazyBatch:
        """The batch."""


@dataclass(frozen=True)
class Indexed:
    """Samples, and, once batched, batches of them.

    order: of samples; batches: the order of the batches cut from it, None before `batched`.
    reader: makes a batch. length: of the source, all samples of a pass.
    """

    samples: Samples
    order: Order
    batch_size: int = 0
    drop_remainder: bool = False
    batches: Order | None = None
    reader: BatchReader = field(default_factory=lambda: CutBatches(None))

    @property
    def cardinality(self) -> int | None:
        """Batches of the data set, None when endless."""
        return self._batched().length

    @property
    def outer_order(self) -> Order:
        """The order of what an operation on the data set sees: samples, or batches."""
        return self.batches or self.order

    def ordered(self, order: Order) -> "Indexed":
        """The same elements in another order."""
        if self.batches is None:
            return replace(self, order=order)
        return replace(self, batches=order)

    def batched(self, batch_size: int, drop_remainder: bool, padding: Padding | None) -> "Indexed":
        """Consecutive samples in batches."""
        require(self.batches is None, "batch", "a data set is batched once", "a second batch()")
        count = self.order.length
        if count is not None:
            count = count // batch_size if drop_remainder else -(-count // batch_size)
        return replace(
            self,
            batch_size=batch_size,
            drop_remainder=drop_remainder,
            batches=Range(count),
            reader=CutBatches(padding),
        )

    def cached(self) -> "Indexed":
        """Every element is made once, and is from then on the same in every pass."""
        if self.batches is None:
            samples = CachedSamples(self.samples)
            return replace(self, samples=samples, order=FirstPass(self.order))
        return replace(self, reader=CachedBatches(self.reader), batches=FirstPass(self.batches))

    def number_of(self, position: int) -> int:
        """The number, in the order of reading, of the batch at a position of the data set."""
        return int(self._batched().numbers(0, position, position + 1)[0])

    def read(self, position: int, clock: StageClock) -> Batch | LazyBatch:
        """The batch at a position of the data set."""
        return self.reader.read(self, self.number_of(position), clock)

    def rows(self, number: int) -> Numbers:
        """The samples of a batch, by their numbers."""
        start, stop, epoch = self._extent(number)
        return self.order.numbers(epoch, start, stop) % len(self.samples)

    def origins(self, number: int) -> list[Origin]:
        """Where the samples of a batch come from."""
        return [self.samples.origin(row) for row in self.rows(number).tolist()]

    def _batched(self) -> Order:
        if self.batches is None:
            raise DataError("the data set has no batches: call .batch(batch_size) in input_fn")
        return self.batches

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


@dataclass(frozen=True)
class CutBatches:
    """Batches cut from the samples; those of arrays are copied where they are wanted."""

    padding: Padding | None

    def read(self, chain: Indexed, number: int, clock: StageClock) -> Batch | LazyBatch:
        """The batch with this number.

        Shapes: out[i] [rows, *shape of array i of a sample]
        """
        rows = chain.rows(number)
        if isinstance(chain.samples, ArraySamples | JoinedSamples) and self.padding is None:
            return LazyBatch(chain.samples, rows)
        samples = chain.samples.each(rows, clock)
        with clock.timed("batch"):
            return stacked(samples, self.padding, chain.origins(number))


@dataclass(frozen=True)
class MappedBatches:
    """A function of each batch. One that was not said to run in parallel runs alone."""

    below: BatchReader
    function: MapFunction
    operator: Operator
    alone: AbstractContextManager[Any]

    def read(self, chain: Indexed, number: int, clock: StageClock) -> Batch:
        """The mapped batch with this number."""
        batch = arrays_of(self.below.read(chain, number, clock), clock)
        with self.alone:
            return mapped(self.function, batch, self.operator, lambda: chain.origins(number), clock)


@dataclass(frozen=True)
class CachedBatches:
    """Batches that stay in this task's memory once they were made."""

    below: BatchReader
    kept: dict[int, Batch] = field(default_factory=dict)

    def read(self, chain: Indexed, number: int, clock: StageClock) -> Batch:
        """The batch with this number, made at the first call."""
        if number not in self.kept:
            made = arrays_of(self.below.read(chain, number, clock), clock)
            self.kept[number] = tuple(map(read_only, made))
        return self.kept[number]


def arrays_of(batch: Batch | LazyBatch, clock: StageClock) -> Batch:
    """The arrays of a batch, in memory of their own."""
    return batch.arrays(clock) if isinstance(batch, LazyBatch) else batch
