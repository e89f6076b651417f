"""cache: what was made once stays in this task's memory."""

from dataclasses import dataclass, field, replace

import numpy as np

from csrun.data.delivery import arrays_of
from csrun.data.errors import Origin
from csrun.data.flow import Chunks, Flow, Item, Source
from csrun.data.formats.base import Sample
from csrun.data.indexed import BatchReader, Indexed, Order, Samples
from csrun.data.operators import StageClock
from csrun.data.samples import Batch, Rows, read_only


def cached(source: Source) -> Source:
    """A source of which every element is made once, and is from then on the same in every pass."""
    if not isinstance(source, Indexed):
        return CacheFlow(source)
    if source.batches is None or source.reader is None:
        samples = CachedSamples(source.samples)
        return replace(source, samples=samples, order=FirstPass(source.order))
    return replace(source, reader=CachedBatches(source.reader), batches=FirstPass(source.batches))


@dataclass(frozen=True)
class FirstPass:
    """The elements of `below`'s pass 0 in every pass: what a cache keeps."""

    below: Order

    @property
    def length(self) -> int | None:
        """Elements of one pass."""
        return self.below.length

    def at(self, epoch: int, positions: Rows) -> Rows:
        """The elements at these positions of any pass."""
        return self.below.at(0, positions)


@dataclass(frozen=True)
class CachedSamples:
    """Samples that stay in this task's memory once they were made."""

    below: Samples
    kept: dict[int, Sample] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.below)

    def each(self, rows: Rows, clock: StageClock) -> list[Sample]:
        """The samples with these numbers; only those not known yet are made."""
        numbers = rows.tolist()
        new = [number for number in numbers if number not in self.kept]
        if new:
            made = self.below.each(np.array(new, np.int64), clock)
            kept = (tuple(map(read_only, sample)) for sample in made)
            self.kept.update(zip(new, kept, strict=True))
        return [self.kept[number] for number in numbers]

    def origin(self, row: int) -> Origin:
        """Where a sample comes from."""
        return self.below.origin(row)


@dataclass(frozen=True)
class CachedBatches:
    """Batches that stay in this task's memory once they were made, by batch size and number."""

    below: BatchReader
    kept: dict[tuple[int, int], Batch] = field(default_factory=dict)

    def read(self, chain: Indexed, number: int, clock: StageClock) -> Batch:
        """The batch with this number, made at the first call."""
        key = chain.batch_size, number
        if key not in self.kept:
            made = arrays_of(self.below.read(chain, number, clock), clock)
            self.kept[key] = tuple(map(read_only, made))
        return self.kept[key]


@dataclass(frozen=True)
class CacheFlow:
    """The elements of the first whole pass, from then on out of this task's memory."""

    below: Flow
    kept: list[list[Item]] = field(default_factory=list)

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Those of the first pass."""
        if self.kept:
            yield from self.kept
            return
        whole: list[list[Item]] = []
        for chunk in self.below.open(0, clock):
            whole.append([(origins, tuple(map(read_only, element))) for origins, element in chunk])
            yield whole[-1]
        self.kept[:] = whole
