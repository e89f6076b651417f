"""Streamers without a wafer: somebody takes all batches they make, and lets them go."""

import os
from collections.abc import Callable
from itertools import count
from time import perf_counter

from csrun.data.delivery import Delivery
from csrun.data.stage_clock import StageClock
from csrun.executable import InputSpec
from csrun.runtime.roles.connections import ring_slots_for
from csrun.runtime.step.batches import fill
from csrun.runtime.step.source import RingSource
from csrun.runtime.wire.channel import channel_pair
from csrun.runtime.wire.ring import RingWriter


class ForkedRings:
    """The rings of so many forked workers, whose batches their parent takes.

    descriptors: readable in the parent when a worker has filled slots.
    """

    def __init__(self, inputs: tuple[InputSpec, ...], tasks: int) -> None:
        self._inputs = inputs
        self._ends = [channel_pair("streamer", "chief") for _ in range(tasks)]
        slots = ring_slots_for(tasks, inputs)
        self._rings = [RingWriter(inputs, slots, control) for _, control in self._ends]
        places = (ring.descriptors for ring in self._rings)
        self._free = {filled: free for _, filled, free in places}
        self.descriptors = tuple(self._free)

    def consumer(self, task: int) -> Callable[[Delivery, StageClock], int]:
        """In a worker: fills its ring. It notices the parent's end while it waits for a slot."""
        for chief, _ in self._ends:
            chief.close()
        ring, numbers = self._rings[task], count()

        def consume(delivery: Delivery, clock: StageClock) -> int:
            slot, number = ring.reserve(), next(numbers)
            rows = fill(slot.arrays, delivery, self._inputs, number, clock)
            ring.publish(rows, number)
            return rows

        return consume

    def take(self, descriptor: int) -> None:
        """Give all filled slots of a ring back, one after the other, as a wafer does."""
        for _ in range(os.eventfd_read(descriptor)):
            os.eventfd_write(self._free[descriptor], 1)

    def close(self) -> None:
        """Let the rings go."""
        for ring, ends in zip(self._rings, self._ends, strict=True):
            ring.close()
            for end in ends:
                end.close()


def drain(source: RingSource, seconds: float) -> tuple[int, float]:
    """Take batches for so long, or until the data ends: the samples, and the time that it took.

    What lies ready in the rings was made before: it is taken first, and not counted.
    """
    started = perf_counter()
    for _ in range(source.slots):
        if perf_counter() - started > seconds or not _take(source):
            break
    samples, started = 0, perf_counter()
    while (spent := perf_counter() - started) < seconds:
        if not (rows := _take(source)):
            break
        samples += rows
    return samples, spent


def _take(source: RingSource) -> int:
    taken = source.take()
    if taken is None:
        return 0
    source.release()
    return taken[1]
