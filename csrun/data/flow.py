"""Streams: elements that come in turn, from their first on, a chunk at a time.

A flow can be opened again for each pass over it; a chunk is a few samples, or one batch, so that a
stage's time is taken once a chunk and not once a sample.
"""

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice
from typing import Any, Protocol

import numpy as np

from csrun.data.delivery import Delivery, arrays_of, require_numbers
from csrun.data.errors import DataError, Origin, WholeBatch
from csrun.data.formats.base import Sample
from csrun.data.indexed import Indexed
from csrun.data.operators import StageClock
from csrun.data.prefetch import prefetched
from csrun.data.structure import Elements

CHUNK = 64  # samples that a stage works on at a time

Item = tuple[tuple[Origin, ...], Sample]  # a sample or a batch, and the samples that it is made of
Chunks = Iterator[list[Item]]

log = logging.getLogger("csrun")


class Flow(Protocol):
    """Elements in turn."""

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """The elements of one pass, from the first."""


Source = Indexed | Flow  # what a chain is made of, in either form


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
            numbers = order.at(epoch, np.arange(start, stop))
            if below.batches is None:
                rows = numbers % len(below.samples)
                origins = ((below.samples.origin(row),) for row in rows.tolist())
                yield list(zip(origins, below.samples.each(rows, clock), strict=True))
                continue
            for number in numbers.tolist():
                batch = arrays_of(below.read(number, clock), clock)
                yield [(tuple(below.origins(number)), batch)]


def in_turn(source: Source) -> Flow:
    """A chain as a stream, whatever its form."""
    return IndexedFlow(source) if isinstance(source, Indexed) else source


@dataclass(frozen=True)
class BatchesFlow:
    """Batches of an iterable; one that is its own iterator gives one pass only.

    begin: begins the pass of a number. elements: how they nest. stage: what the time that they take
    is labelled by.
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
            yield [((WholeBatch(number),), require_numbers(self.elements.taken(batch)))]


@dataclass
class Opening:
    """A stream that was opened to look at its first batch, kept for who reads next."""

    items: list[Iterator[Item]] = field(default_factory=list)
    warned: bool = False

    def first(self, flow: Flow, clock: StageClock) -> Item:
        """The first batch; it is still there for the reader.

        Raises: DataError when there is none
        """
        items = self._take(flow, clock)
        for item in items:
            self.items.append(chain([item], items))
            return item
        raise DataError("input_fn: the data set must not be empty, and it gives no batch")

    def deliveries(
        self, flow: Flow, start: int, stride: int, ahead: int, clock: StageClock
    ) -> Iterator[Delivery]:
        """Batches start, start + stride, … of the stream; all others are made and thrown away."""
        items = islice(self._take(flow, clock), start, None, stride)
        deliveries = map(_delivery, items)
        return prefetched(deliveries, ahead) if ahead else deliveries

    def warn_of_replay(self, why: str, remedy: str) -> None:
        """Say once that batches are made for nothing."""
        if not self.warned:
            self.warned = True
            log.warning(
                "input_fn: %s, which cannot be indexed: the batches before and between those "
                "wanted are produced and thrown away; this does not scale; %s",
                why,
                remedy,
            )

    def _take(self, flow: Flow, clock: StageClock) -> Iterator[Item]:
        """All batches, from the first."""
        return self.items.pop() if self.items else chain.from_iterable(flow.open(0, clock))


def in_chunks(items: Iterator[Item], size: int) -> Chunks:
    """So many items at a time; fewer at the end."""
    while chunk := list(islice(items, size)):
        yield chunk


def _delivery(item: Item) -> Delivery:
    origins, batch = item
    return Delivery(batch, lambda: origins)
