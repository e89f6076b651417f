"""From a chain to its batches, one after the other."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain, count, islice, takewhile

from csrun.data.errors import DataError
from csrun.data.flow import Flow, Item
from csrun.data.indexed import Indexed, arrays_of
from csrun.data.lazy_batch import Delivery
from csrun.data.prefetch import prefetched, read_ahead
from csrun.data.stage_clock import StageClock

log = logging.getLogger("csrun")


@dataclass
class Opening:
    """A stream that was opened to look at its first batch, kept for who reads next."""

    items: list[Iterator[Item]] = field(default_factory=list)
    warned: bool = False

    def first(self, flow: Flow, clock: StageClock) -> Item:
        """The first batch; it is still there for the reader.

        Raises: DataError when there is none
        """
        items = self.take(flow, clock)
        for item in items:
            self.items.append(chain([item], items))
            return item
        raise DataError("input_fn: the data set must not be empty, and it gives no batch")

    def take(self, flow: Flow, clock: StageClock) -> Iterator[Item]:
        """All batches, from the first."""
        return self.items.pop() if self.items else chain.from_iterable(flow.open(0, clock))


def read_indexed(
    source: Indexed, start: int, stride: int, threads: int, ahead: int, clock: StageClock
) -> Iterator[Delivery]:
    """Batches start, start + stride, … of an indexable chain.

    Several threads make a batch each; otherwise one thread reads `ahead` batches, or none does.
    """
    end = source.cardinality
    positions: Iterator[int] = count(start, stride)
    if end is not None:
        positions = takewhile(lambda position: position < end, positions)

    def deliver(position: int) -> Delivery:
        number = source.number_of(position)
        batch = source.reader.read(source, number, clock)
        return Delivery(batch, lambda: source.origins(number))

    def deliver_whole(position: int) -> Delivery:
        delivery = deliver(position)
        return Delivery(arrays_of(delivery.batch, clock), delivery.origins)

    if threads == 1 and not ahead:
        return map(deliver, positions)
    return read_ahead(positions, deliver_whole, threads, max(ahead, threads))


def read_flow(
    flow: Flow, opening: Opening, start: int, stride: int, ahead: int, clock: StageClock
) -> Iterator[Delivery]:
    """Batches start, start + stride, … of a stream; all others are made and thrown away."""
    items = islice(opening.take(flow, clock), start, None, stride)
    deliveries = map(_delivery, items)
    return prefetched(deliveries, ahead) if ahead else deliveries


def warn_of_replay(opening: Opening, why: str, remedy: str) -> None:
    """Say once that batches are made for nothing."""
    if not opening.warned:
        opening.warned = True
        log.warning(
            "input_fn: %s, which cannot be indexed: the batches before and between those wanted "
            "are produced and thrown away; this does not scale; %s",
            why,
            remedy,
        )


def _delivery(item: Item) -> Delivery:
    origins, batch = item
    return Delivery(batch, lambda: origins)
