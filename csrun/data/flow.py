"""Streams: elements that come in turn, from their first on, a chunk at a time.

A flow can be opened again for each pass over it; a chunk is a few samples, or one batch, so that a
stage's time is taken once a chunk and not once a sample.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, count, islice
from typing import Any, Protocol

import numpy as np

from csrun.data.errors import DataError
from csrun.data.formats.base import Sample
from csrun.data.indexed import Indexed, arrays_of
from csrun.data.lazy_batch import mapped
from csrun.data.operators import Level, Operator
from csrun.data.order import random_source
from csrun.data.origins import Origin, WholeBatch, span_of
from csrun.data.padding import Padding, stacked
from csrun.data.samples import MapFunction, as_batch, as_sample, failed_in, read_only
from csrun.data.stage_clock import StageClock

CHUNK = 64  # samples that a stage works on at a time

Item = tuple[tuple[Origin, ...], Sample]  # a sample or a batch, and the samples that it is made of
Chunks = Iterator[list[Item]]


class Flow(Protocol):
    """Elements in turn."""

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """The elements of one pass, from the first."""


@dataclass(frozen=True)
class IndexedFlow:
    """An indexed chain, read in its order."""

    below: Indexed

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Its samples, or its batches."""
        order, below = self.below.outer_order, self.below
        for start in count(0, CHUNK):
            stop = start + CHUNK if order.length is None else min(start + CHUNK, order.length)
            if stop <= start:
                return
            numbers = order.numbers(epoch, start, stop)
            if below.batches is None:
                rows = numbers % len(below.samples)
                origins = ((below.samples.origin(row),) for row in rows.tolist())
                yield list(zip(origins, below.samples.each(rows, clock), strict=True))
                continue
            for number in numbers.tolist():
                batch = arrays_of(below.reader.read(below, number, clock), clock)
                yield [(tuple(below.origins(number)), batch)]


@dataclass(frozen=True)
class BatchesFlow:
    """Batches of an iterable; one that is its own iterator gives one pass only.

    stage: what the time that they take is labelled by.
    """

    iterable: Iterable[Any]
    stage: str
    opened: list[bool] = field(default_factory=list)

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Its batches."""
        if self.opened and isinstance(self.iterable, Iterator):
            raise DataError(
                f"input_fn: the {type(self.iterable).__name__} has been read already and cannot "
                "start again; return a new one at each call"
            )
        self.opened.append(True)
        return self._chunks(iter(self.iterable), clock)

    def _chunks(self, batches: Iterator[Any], clock: StageClock) -> Chunks:
        for number in count():
            with clock.timed(self.stage):
                batch = next(batches, None)
            if batch is None:
                return
            yield [((WholeBatch(number),), as_batch(batch))]


@dataclass(frozen=True)
class RepeatFlow:
    """So many passes, one after the other; endless when None."""

    below: Flow
    passes: int | None

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """The elements of all of them."""
        first = epoch * (self.passes or 0)
        for number in range(self.passes) if self.passes is not None else count():
            empty = True
            for chunk in self.below.open(first + number, clock):
                empty = False
                yield chunk
            if empty:
                return


@dataclass(frozen=True)
class ShardFlow:
    """Every `count`-th element, from `index` on."""

    below: Flow
    count: int
    index: int

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Those elements."""
        skip = self.index
        for chunk in self.below.open(epoch, clock):
            yield chunk[skip :: self.count]
            skip = (skip - len(chunk)) % self.count


@dataclass(frozen=True)
class ShuffleFlow:
    """A random one of `window` elements at a time, the next one takes its place.

    Source: D. Knuth, The Art of Computer Programming 2, 3.2.2, algorithm B (Bays and Durham)
    """

    below: Flow
    window: int
    seed: int

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """The elements in another order each pass, fixed by the seed."""
        held: list[Item] = []
        draws = _draws(self.seed, epoch, self.window)
        for chunk in self.below.open(epoch, clock):
            with clock.timed("shuffle"):
                ready = []
                for item in chunk:
                    if len(held) < self.window:
                        held.append(item)
                        continue
                    place = next(draws)
                    ready.append(held[place])
                    held[place] = item
            if ready:
                yield ready
        with clock.timed("shuffle"):
            rest = random_source(self.seed, epoch, stream=1).permutation(len(held))
            left = [held[place] for place in rest.tolist()]
        yield from _in_chunks(iter(left), CHUNK)


@dataclass(frozen=True)
class MapFlow:
    """A function of each element; of `threads` elements at a time, in their order all the same."""

    below: Flow
    function: MapFunction
    operator: Operator
    threads: int

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """The mapped elements."""
        one = self._batch if self.operator.level is Level.BATCH else self._sample
        below = self.below.open(epoch, clock)
        if self.threads == 1:
            if self.operator.level is Level.BATCH:
                yield from ([one(item, clock) for item in chunk] for chunk in below)
            else:
                yield from (self._samples(chunk, clock) for chunk in below)
            return
        with ThreadPoolExecutor(self.threads, thread_name_prefix="map") as threads:
            for chunk in _in_chunks(chain.from_iterable(below), self.threads):
                yield list(threads.map(partial(one, clock=clock), chunk))

    def _batch(self, item: Item, clock: StageClock) -> Item:
        origins, batch = item
        return origins, mapped(self.function, batch, self.operator, lambda: origins, clock)

    def _sample(self, item: Item, clock: StageClock) -> Item:
        return self._samples([item], clock)[0]

    def _samples(self, chunk: list[Item], clock: StageClock) -> list[Item]:
        done: list[Item] = []
        with clock.timed(self.operator.stage):
            try:
                for origins, sample in chunk:
                    done.append((origins, as_sample(self.function(*sample))))
            except Exception as error:
                error.add_note(failed_in(self.operator, span_of(chunk[len(done)][0])))
                raise
        return done


@dataclass(frozen=True)
class FilterFlow:
    """The elements for which the predicate holds."""

    below: Flow
    predicate: Callable[..., Any]
    operator: Operator

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Those elements."""
        for chunk in self.below.open(epoch, clock):
            kept: list[Item] = []
            with clock.timed(self.operator.stage):
                origins: tuple[Origin, ...] = ()
                try:
                    for origins, element in chunk:
                        if self.predicate(*element):
                            kept.append((origins, element))
                except Exception as error:
                    error.add_note(failed_in(self.operator, span_of(origins)))
                    raise
            if kept:
                yield kept


@dataclass(frozen=True)
class BatchFlow:
    """Consecutive samples in batches."""

    below: Flow
    batch_size: int
    drop_remainder: bool
    padding: Padding | None

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """The batches."""
        samples = chain.from_iterable(self.below.open(epoch, clock))
        for group in _in_chunks(samples, self.batch_size):
            if len(group) < self.batch_size and self.drop_remainder:
                return
            with clock.timed("batch"):
                origins = tuple(origin for (origin,), _ in group)
                batch = as_batch(stacked([sample for _, sample in group], self.padding, origins))
            yield [(origins, batch)]


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


def _in_chunks(items: Iterator[Item], size: int) -> Chunks:
    while chunk := list(islice(items, size)):
        yield chunk


def _draws(seed: int, epoch: int, window: int) -> Iterator[int]:
    source = random_source(seed, epoch)
    while True:
        yield from source.integers(window, size=1024, dtype=np.int64).tolist()
