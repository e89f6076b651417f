"""cache: elements kept in this task's memory."""

from dataclasses import dataclass, field, replace

import numpy as np

from csrun.data.delivery import arrays_of
from csrun.data.errors import Origin
from csrun.data.flow import Chunks, Flow, Item, Source
from csrun.data.formats.base import Sample
from csrun.data.indexed import BatchReader, Indexed, Order
from csrun.data.input_operators import StageClock
from csrun.data.samples import Batch, Rows, Samples, read_only


def cached(source: Source) -> Source:
    """Cache a source: each element is made once, and is the same in every pass."""
    if not isinstance(source, Indexed):
        return CacheFlow(source)
    if source.batches is None or source.reader is None:
        samples = CachedSamples(source.samples)
        return replace(source, samples=samples, order=FirstPass(source.order))
    return replace(source, reader=CachedBatches(source.reader), batches=FirstPass(source.batches))


@dataclass(frozen=True)
class FirstPass:
    """Order of `below`'s pass 0 in every pass."""

    below: Order

    @property
    def length(self) -> int | None:
        """Elements per pass."""
        return self.below.length

    def at(self, epoch: int, positions: Rows) -> Rows:
        """Return the elements at these positions of any pass."""
        return self.below.at(0, positions)


@dataclass(frozen=True)
class CachedSamples:
    """Cached samples."""

    below: Samples
    cached_items: dict[int, Sample] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.below)

    def each(self, rows: Rows, clock: StageClock) -> list[Sample]:
        """Return samples by number, making those not cached."""
        numbers = rows.tolist()
        new = [number for number in numbers if number not in self.cached_items]
        if new:
            made = self.below.each(np.array(new, np.int64), clock)
            cached_items = (tuple(map(read_only, sample)) for sample in made)
            self.cached_items.update(zip(new, cached_items, strict=True))
        return [self.cached_items[number] for number in numbers]

    def origin(self, row: int) -> Origin:
        """Origin of a sample."""
        return self.below.origin(row)


@dataclass(frozen=True)
class CachedBatches:
    """Cached batches, by batch size and number."""

    below: BatchReader
    cached_items: dict[tuple[int, int], Batch] = field(default_factory=dict)

    def read(self, chain: Indexed, number: int, clock: StageClock) -> Batch:
        """Return a batch by number, made at the first call."""
        # Keyed by size, too: an estimate of a batch's bytes reads a small batch of the same number.
        key = chain.batch_size // chain.parts, number
        if key not in self.cached_items:
            made = arrays_of(self.below.read(chain, number, clock), clock)
            self.cached_items[key] = tuple(map(read_only, made))
        return self.cached_items[key]


@dataclass(frozen=True)
class CacheFlow:
    """Stream of the first complete pass, then from memory."""

    below: Flow
    cached_items: list[list[Item]] = field(default_factory=list)

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Open a pass."""
        if self.cached_items:
            yield from self.cached_items
            return
        whole: list[list[Item]] = []
        for chunk in self.below.open(0, clock):
            whole.append([(origins, tuple(map(read_only, element))) for origins, element in chunk])
            yield whole[-1]
        # Only after a complete pass: one that was left early would be taken for all of the data.
        self.cached_items[:] = whole
