"""Feeding without a wafer: all batches of the streamers are received and discarded."""

import os
from collections.abc import Callable
from time import perf_counter

from csrun.base.run_config import RunSettings
from csrun.data import Dataset
from csrun.executable import InputSpec
from csrun.runtime.step.batch_maker import BatchMaker, BatchNumbers
from csrun.runtime.step.source import RingSource
from csrun.runtime.wire.channel import channel_pair
from csrun.runtime.wire.ring import RingWriter, ring_slots_for


class ForkedRings:
    """Rings of forked workers, whose batches their parent receives.

    descriptors: readable in the parent when a worker has filled slots.
    """

    def __init__(self, inputs: tuple[InputSpec, ...], settings: RunSettings, tasks: int) -> None:
        self._inputs, self._settings = inputs, settings
        self._ends = [channel_pair("streamer", "chief") for _ in range(tasks)]
        slots = ring_slots_for(tasks, inputs)
        self._rings = [RingWriter(inputs, slots, control) for _, control in self._ends]
        places = (ring.descriptors for ring in self._rings)
        self._free = {filled: free for _, filled, free in places}
        self.descriptors = tuple(self._free)

    def join(self, task: int) -> None:
        """Make this process worker `number`."""
        for chief, _ in self._ends:
            chief.close()
        self._ring = self._rings[task]

    def fed_by(self, dataset: Dataset, numbers: BatchNumbers) -> Callable[[], int | None]:
        """In a worker, return a function that makes a batch in its ring and returns its rows.

        It detects the parent's exit while it waits for a slot.
        """
        ring = self._ring
        maker = BatchMaker(dataset, self._inputs, numbers, self._settings, "this worker")

        def feed() -> int | None:
            slot, number = ring.reserve(), maker.number
            made = maker.make(slot.arrays)
            ring.publish(made, number)
            return None if made is None else made.rows

        return feed

    def take(self, descriptor: int) -> None:
        """Free all filled slots of a ring."""
        os.eventfd_write(self._free[descriptor], os.eventfd_read(descriptor))

    def close(self) -> None:
        for ring, ends in zip(self._rings, self._ends, strict=True):
            ring.close()
            for end in ends:
                end.close()


def drain(source: RingSource, seconds: float) -> tuple[int, float]:
    """Receive batches for a time, or until the data ends; return samples and seconds.

    Batches already in the rings are received first and not counted.
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
    return taken.made.rows
