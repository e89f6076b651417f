"""map: a function applied to each sample or batch."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from csrun.data.delivery import arrays_of, require_numbers
from csrun.data.errors import BatchOrigin, Origin, span_of, text_of
from csrun.data.flow import Chunks, Flow, Item, Source, in_chunks
from csrun.data.formats.base import Sample
from csrun.data.indexed import BatchReader, Indexed
from csrun.data.input_operators import InputOperator, Level, StageClock
from csrun.data.samples import Batch, Rows, Samples

MapFunction = Callable[..., Sample]  # on flat elements


def mapped(
    source: Source, function: MapFunction, operator: InputOperator, threads: int | None
) -> Source:
    """Map a source; threads: None for num_parallel_calls left at its default.

    Indexed batches are made by several reader threads, so a function not declared parallel holds a
    lock there; a stream calls it on its own threads.
    """
    if not isinstance(source, Indexed):
        return MapFlow(source, function, operator, threads or 1)
    mutex: AbstractContextManager[Any] = threading.Lock() if threads is None else nullcontext()
    if source.reader is None:
        return replace(source, samples=MappedSamples(source.samples, function, operator, mutex))
    return replace(source, reader=MappedBatches(source.reader, function, operator, mutex))


@dataclass(frozen=True)
class MappedSamples:
    """Samples mapped by a function, under a lock unless it is declared parallel."""

    below: Samples
    function: MapFunction
    operator: InputOperator
    mutex: AbstractContextManager[Any]

    def __len__(self) -> int:
        return len(self.below)

    def each(self, rows: Rows, clock: StageClock) -> list[Sample]:
        """Return samples by number, mapped one by one."""
        samples = self.below.each(rows, clock)
        with self.mutex:
            return self._mapped(samples, rows, clock)

    def _mapped(self, samples: list[Sample], rows: Rows, clock: StageClock) -> list[Sample]:
        done: list[Sample] = []
        with clock.timed(self.operator.stage):
            try:
                for sample in samples:
                    done.append(self.function(*sample))
            except Exception as error:
                origin = self.origin(int(rows[len(done)]))
                error.add_note(self.operator.failed_at(text_of(origin)))
                raise
        return done

    def origin(self, row: int) -> Origin:
        """Origin of a sample."""
        return self.below.origin(row)


@dataclass(frozen=True)
class MappedBatches:
    """Batches mapped by a function, under a lock unless it is declared parallel."""

    below: BatchReader
    function: MapFunction
    operator: InputOperator
    mutex: AbstractContextManager[Any]

    def read(self, chain: Indexed, number: int, clock: StageClock) -> Batch:
        """Read a batch by number, and map it."""
        batch = arrays_of(self.below.read(chain, number, clock), clock)
        with self.mutex:
            return _call(self.function, batch, self.operator, lambda: chain.origins(number), clock)


@dataclass(frozen=True)
class MapFlow:
    """Stream mapped by a function, `threads` elements at a time, in order."""

    below: Flow
    function: MapFunction
    operator: InputOperator
    threads: int

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        one = self._batch if self.operator.level is Level.BATCH else self._sample
        below = self.below.open(epoch, clock)
        if self.threads == 1:
            if self.operator.level is Level.BATCH:
                yield from ([one(item, clock) for item in chunk] for chunk in below)
            else:
                yield from (self._samples(chunk, clock) for chunk in below)
            return
        # Chunk by chunk: the pool's `map` would first read the whole stream, which may be endless.
        with ThreadPoolExecutor(self.threads, thread_name_prefix="map") as threads:
            for chunk in in_chunks(chain.from_iterable(below), self.threads):
                yield list(threads.map(partial(one, clock=clock), chunk))

    def _batch(self, item: Item, clock: StageClock) -> Item:
        origins, batch = item
        return origins, _call(self.function, batch, self.operator, lambda: origins, clock)

    def _sample(self, item: Item, clock: StageClock) -> Item:
        return self._samples([item], clock)[0]

    def _samples(self, chunk: list[Item], clock: StageClock) -> list[Item]:
        done: list[Item] = []
        with clock.timed(self.operator.stage):
            try:
                for origins, sample in chunk:
                    done.append((origins, self.function(*sample)))
            except Exception as error:
                error.add_note(self.operator.failed_at(span_of(chunk[len(done)][0])))
                raise
        return done


def _call(
    function: MapFunction,
    batch: Batch,
    operator: InputOperator,
    origins: Callable[[], Sequence[Origin]],
    clock: StageClock,
) -> Batch:
    """Call `function(*batch)`; its exceptions get a note that names the sample."""
    try:
        with clock.timed(operator.stage):
            return require_numbers(function(*batch))
    except Exception as error:
        culprit = _culprit(function, batch, type(error), origins())
        error.add_note(operator.failed_at(culprit))
        raise


def _culprit(
    function: MapFunction, batch: Batch, kind: type[Exception], origins: Sequence[Origin]
) -> str:
    """Find the first sample that fails in the same way alone; all samples if none does."""
    for row, name in enumerate(_row_names(batch, origins)):
        try:
            function(*(np.array(array[row : row + 1]) for array in batch))
        except kind:
            return name
        except Exception:
            continue
    return span_of(origins)


def _row_names(batch: Batch, origins: Sequence[Origin]) -> list[str]:
    first = origins[0]
    if not isinstance(first, BatchOrigin):
        return [text_of(origin) for origin in origins]
    rows = min(len(array) if array.ndim else 0 for array in batch)
    return [f"{text_of(first)}, row {row}" for row in range(rows)]
