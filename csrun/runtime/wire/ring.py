"""Ring by which one streamer passes batches to a run's wafers: shared memory and counters.

Each wafer has two counters, filled and free: all wafers read every slot, and a slot is free when
the last one has returned it.

A slot is a header of int64 and the arrays of one batch, all at multiples of 64 bytes. The wafer
computes on the slot's arrays in place and returns the slot afterwards; nothing is copied.

Slots are returned in bursts. A streamer that is woken for a single batch has lost its caches to
other processes: with 96 streamers on two cores each batch took three times the CPU time of a
streamer alone, and half of that in bursts of 4.
"""

from dataclasses import dataclass

import msgspec
import numpy as np
import numpy.typing as npt

from csrun.executable import InputSpec, aligned, nbytes_of, view
from csrun.executable.arrays import Bytes, ReusedBatch
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.shared import Counter, Overdue, SharedMemory, Waiter

RINGS_BYTES = 1 << 29  # limit for all rings together, unless LEAST_RING_SLOTS of each take more
LEAST_RING_SLOTS = 2  # one being read, one being filled
BATCHES_AHEAD = 16  # prefetched batches of all streamers: a stall of 12 steps is not noticed
BURST = 4  # slots that are returned at once, if the ring has that many more
END_OF_DATA = -1  # in the header's `rows`
UNKNOWN_STAGE = -1
PASS = 6  # in the header: the number of the pass over the data
HEADER_LENGTH = 7  # without the counts of labels


@dataclass(frozen=True, slots=True)
class Production:
    """Cost of a batch in its streamer, without the wait for a free slot.

    slowest: index of the slowest stage, in the names of Primed.
    slowest_ns: its mean time over the batches so far.
    """

    ns: int = 0
    slowest: int = UNKNOWN_STAGE
    slowest_ns: int = 0


NO_PRODUCTION = Production()


class BatchCounts(msgspec.Struct, frozen=True):
    """Counts of a batch: its valid rows, and its labels for each range of each input."""

    rows: int
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchSlot:
    """One batch: its header, and its arrays in the inputs' order.

    header: int64[7 + n] = (rows, batch index, production's ns, slowest, slowest_ns, stage entered +
        1, number of the pass, the batch's n counts of labels)
    """

    header: npt.NDArray[np.int64]
    arrays: ReusedBatch


def slot_bytes(inputs: tuple[InputSpec, ...]) -> int:
    header = aligned(nbytes_of((header_length(inputs),), "int64"))
    return header + sum(_aligned_bytes(spec) for spec in inputs)


def header_length(inputs: tuple[InputSpec, ...]) -> int:
    """Return the length of a slot's header."""
    return HEADER_LENGTH + sum(len(spec.labels) for spec in inputs)


def _aligned_bytes(spec: InputSpec) -> int:
    return aligned(nbytes_of(spec.shape, spec.dtype))


def slot_views(memory: Bytes, inputs: tuple[InputSpec, ...], slots: int) -> list[BatchSlot]:
    """Return a ring's slots as arrays over its memory."""
    views = []
    for index in range(slots):
        offset = index * slot_bytes(inputs)
        header = np.asarray(view(memory, offset, (header_length(inputs),), "int64"), np.int64)
        offset += aligned(header.nbytes)
        arrays = []
        for spec in inputs:
            arrays.append(view(memory, offset, spec.shape, spec.dtype))
            offset += _aligned_bytes(spec)
        views.append(BatchSlot(header, ReusedBatch(arrays)))
    return views


def write_header(
    slot: BatchSlot, made: BatchCounts | None, index: int, cost: Production, number: int = 0
) -> None:
    """Write a slot's header except the stage; `number` is that of the pass."""
    rows = END_OF_DATA if made is None else made.rows
    slot.header[:5] = rows, index, cost.ns, cost.slowest, cost.slowest_ns
    slot.header[PASS] = number
    slot.header[HEADER_LENGTH:] = 0 if made is None else made.counts


class RingWriter:
    """Streamer's end: creates the ring and fills slots in order, for this many readers."""

    def __init__(
        self, inputs: tuple[InputSpec, ...], slots: int, control: Channel, readers: int = 1
    ) -> None:
        self._memory = SharedMemory.create("batches", slots * slot_bytes(inputs))
        self._slots = slot_views(self._memory.bytes, inputs, slots)
        self._filled = [Counter.create() for _ in range(readers)]
        self._free = [Counter.create() for _ in range(readers)]
        for free in self._free:
            free.raise_by(slots)
        self._waiters = [Waiter(free, control) for free in self._free]
        self._next = 0

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Descriptors for the readers: memory, and filled and free of each."""
        pairs = zip(self._filled, self._free, strict=True)
        return self._memory.descriptor, *(c.descriptor for pair in pairs for c in pair)

    def reserve(self) -> BatchSlot:
        """Wait for a free slot; call `publish` when it is filled."""
        for waiter in self._waiters:
            waiter.take()
        slot = self._slots[self._next]
        # Reset the stage, so that the previous batch's is not taken for this one's.
        slot.header[5] = 0
        return slot

    def enter(self, stage: int) -> None:
        """Record that the next batch has entered this stage."""
        self._slots[self._next].header[5] = stage + 1

    @property
    def room(self) -> int:
        """Descriptor that is readable when more slots are free: of a reader that has returned none.

        Nothing is read from it here, so a wait on it does not miss slots returned meanwhile.
        """
        slowest = min(
            zip(self._waiters, self._free, strict=True), key=lambda each: each[0].ready_count
        )
        return slowest[1].descriptor

    def ready(self) -> int:
        """Number of slots known to be free; 0 only if there is none."""
        return min(waiter.ready() for waiter in self._waiters)

    @property
    def ready_count(self) -> int:
        """Number of free slots that have been reported already."""
        return min(waiter.ready_count for waiter in self._waiters)

    def publish(
        self,
        made: BatchCounts | None,
        index: int,
        cost: Production = NO_PRODUCTION,
        number: int = 0,
    ) -> None:
        """Pass the reserved slot to the readers, with its production (None at the end) and batch
        index.

        number: number of the pass over the data.
        """
        write_header(self._slots[self._next], made, index, cost, number)
        self._next = (self._next + 1) % len(self._slots)
        for filled in self._filled:
            filled.raise_by()

    def close(self) -> None:
        """Close the descriptors, and free the memory."""
        self._slots.clear()
        self._memory.close()
        for counter in (*self._filled, *self._free):
            counter.close()


def prefetch_depths(rings: int, parts: int = 1) -> int:
    """Return the number of slots that each of this many rings prefetches; parts: of a batch."""
    return max(LEAST_RING_SLOTS, parts * BATCHES_AHEAD // rings)


def ring_slots_for(streamers: int, inputs: tuple[InputSpec, ...], parts: int = 1) -> int:
    """Return the number of slots of each ring: all rings hold BATCHES_AHEAD, or fewer within
    RINGS_BYTES.

    Slots of a burst, which have been read already, are added. parts: slots that a batch takes.
    """
    in_bytes = RINGS_BYTES // (streamers * slot_bytes(inputs))
    return max(LEAST_RING_SLOTS, min(in_bytes, prefetch_depths(streamers, parts) + BURST))


def slots_per_release(slots: int, ahead: int) -> int:
    """Return the number of slots that a ring's reader returns at once.

    Slots of prefetched batches are never held back, even if memory limits their number.
    """
    return max(1, min(BURST, slots - ahead))


class RingReader:
    """Wafer's end of one ring.

    turn: index of the ring; the bursts of different rings begin at different steps.
    ahead: number of slots that are never held back for a burst.
    """

    def __init__(
        self,
        descriptors: tuple[int, int, int],
        inputs: tuple[InputSpec, ...],
        slots: int,
        control: Channel,
        overdue: Overdue | None = None,
        turn: int = 0,
        ahead: int = LEAST_RING_SLOTS,
    ) -> None:
        self._memory = SharedMemory.attach(descriptors[0])
        self._filled, self._free = Counter(descriptors[1]), Counter(descriptors[2])
        self._slots = slot_views(self._memory.bytes, inputs, slots)
        self._waiter = Waiter(self._filled, control, overdue)
        self._next = 0
        self._burst = slots_per_release(slots, ahead)
        self._kept = 0  # slots that are read, but not returned yet
        # If all rings began their bursts together, they would wake all streamers in the same step.
        self._to_keep = self._burst - turn % self._burst

    @property
    def slots(self) -> int:
        """Number of batches that it holds."""
        return len(self._slots)

    def take(self) -> BatchSlot:
        """Wait for the next batch; call `release` when it is no longer read."""
        self._waiter.take()
        return self._slots[self._next]

    def discard(self, number: int) -> None:
        """Return the slots of other passes than this one."""
        while self._waiter.ready() and self._slots[self._next].header[PASS] != number:
            self._waiter.take()
            self.release()

    def entered(self) -> int:
        """Stage of the next batch; UNKNOWN_STAGE before the first one."""
        return int(self._slots[self._next].header[5]) - 1

    def release(self) -> None:
        """Return the slot to the streamer, together with the others of its burst."""
        self._next = (self._next + 1) % len(self._slots)
        self._kept += 1
        if self._kept == self._to_keep:
            self._free.raise_by(self._kept)
            self._kept, self._to_keep = 0, self._burst

    def close(self) -> None:
        """Close the descriptors, and free the memory."""
        self._slots.clear()
        for part in (self._memory, self._filled, self._free):
            part.close()
