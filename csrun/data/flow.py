"""Streams: elements in sequence from the first one, in chunks.

A flow can be reopened for each pass. A chunk is a few samples, or one batch, so that stages are
timed per chunk instead of per sample.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any, Protocol

import numpy as np

from csrun.data.delivery import Delivery, arrays_of, require_numbers
from csrun.data.errors import BatchOrigin, DataError, Origin
from csrun.data.formats.base import Sample
from csrun.data.indexed import Indexed
from csrun.data.input_operators import StageClock
from csrun.data.prefetch import prefetched
from csrun.data.structure import Elements

CHUNK = 64  # samples per chunk

Item = tuple[tuple[Origin, ...], Sample]  # a sample or batch, and the origins of its samples
Chunks = Iterator[list[Item]]

log = logging.getLogger("csrun")


class Flow(Protocol):
    """Stream of elements."""

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Open a pass."""


Source = Indexed | Flow  # a chain in either form


@dataclass(frozen=True)
class IndexedFlow:
    """Stream of an indexed chain in its order."""

    below: Indexed

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Iterate over its samples or batches."""
        order, below = self.below.outer_order, self.below
        for start in count(0, CHUNK):
            stop = start + CHUNK if order.length is None else min(start + CHUNK, order.length)
            if stop <= start:
                return
            numbers = order.at(epoch, np.arange(start, stop))
            if below.batches is None:
                rows = numbers % len(below.samples)
                origins = ((below.samples.origin(row),) for row in rows.tolist())
                yield list(zip(origins, below.samples.each(rows, clock), strict=True))
                continue
            for number in numbers.tolist():
                batch = arrays_of(below.read(number, clock), clock)
                yield [(tuple(below.origins(number)), batch)]


def as_stream(source: Source) -> Flow:
    """Convert a chain to a stream."""
    return IndexedFlow(source) if isinstance(source, Indexed) else source


@dataclass(frozen=True)
class BatchesFlow:
    """Batches of an iterable; an iterator allows a single pass.

    begin: called at the start of a pass. elements: their structure. stage: label of their time.
    """

    iterable: Iterable[Any]
    begin: Callable[[int], Iterator[Any]]
    elements: Elements
    stage: str
    opened: list[bool] = field(default_factory=list)

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        if self.opened and isinstance(self.iterable, Iterator):
            raise DataError(
                f"input_fn: the {type(self.iterable).__name__} has been read already and cannot "
                "start again; return a new one at each call"
            )
        self.opened.append(True)
        return self._chunks(self.begin(epoch), clock)

    def _chunks(self, batches: Iterator[Any], clock: StageClock) -> Chunks:
        for number in count():
            with clock.timed(self.stage):
                batch = next(batches, None)
            if batch is None:
                return
            yield [((BatchOrigin(number),), require_numbers(self.elements.taken(batch)))]


@dataclass
class OpenedStream:
    """Stream opened for its first batch, kept for the next reader."""

    items: list[Iterator[Item]] = field(default_factory=list)
    warned: bool = False

    def first(self, flow: Flow, clock: StageClock) -> Item:
        """Return the first batch, which the reader still gets.

        Raises: DataError if there is none
        """
        items = self._take(flow, clock)
        for item in items:
            # What is read cannot be put back into a stream, and opening it again may not be
            # possible.
            self.items.append(chain([item], items))
            return item
        raise DataError("input_fn: the data set must not be empty, got no batch")

    def deliveries(
        self, flow: Flow, start: int, stride: int, ahead: int, clock: StageClock
    ) -> Iterator[Delivery]:
        """Yield batches start, start + stride, … of the stream; all others are made and dropped."""
        items = islice(self._take(flow, clock), start, None, stride)
        deliveries = map(_delivery, items)
        return prefetched(deliveries, ahead) if ahead else deliveries

    def warn_of_replay(self, why: str, remedy: str) -> None:
        """Warn once that batches are made and dropped."""
        if not self.warned:
            self.warned = True
            log.warning(
                "input_fn: %s and cannot be indexed: the batches before and between those "
                "needed are produced and dropped; this does not scale; %s",
                why,
                remedy,
            )

    def _take(self, flow: Flow, clock: StageClock) -> Iterator[Item]:
        """Yield all batches."""
        return self.items.pop() if self.items else chain.from_iterable(flow.open(0, clock))


def in_chunks(items: Iterator[Item], size: int) -> Chunks:
    """Group items into chunks; the last one may be shorter."""
    while chunk := list(islice(items, size)):
        yield chunk


def _delivery(item: Item) -> Delivery:
    origins, batch = item
    return Delivery(batch, lambda: origins)
