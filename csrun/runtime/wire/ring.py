"""The ring in which one streamer hands batches to a run's wafers: shared memory and counters.

Each wafer has two counters of its own, filled and free: all of them read every slot, and one is
free when the last has given it back.

A slot is a header of int64 and the arrays of one batch, all at multiples of 64 bytes. The wafer
computes on the slot's arrays in place and gives the slot back afterwards; nothing is copied.

Slots are given back a burst at a time. A streamer that is woken for a single batch has lost its
caches to the others meanwhile: of 96 on two cores each batch took three times the processor time
that it takes one streamer alone, and half of that in bursts of 4.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csrun.executable import InputSpec, aligned, nbytes_of, view
from csrun.executable.arrays import Array, Bytes
from csrun.runtime.wire.channel import Channel
from csrun.runtime.wire.shared import Counter, Overdue, SharedMemory, Waiter

RINGS_BYTES = 1 << 29  # of all rings together, where LEAST_RING_SLOTS of each take less
LEAST_RING_SLOTS = 2  # one being read, one being filled
BATCHES_AHEAD = 16  # over all streamers: one that stalls for 12 steps now and then is not felt
BURST = 4  # slots that are given back at once, where the ring has that many to spare
END_OF_DATA = -1  # in the header's `rows`
UNKNOWN_STAGE = -1
PASS = 6  # in the header: the number of the pass over the data
HEADER_LENGTH = 7  # without the counts of labels


@dataclass(frozen=True, slots=True)
class Production:
    """Cost of a batch to its streamer, without the wait for a free slot.

    slowest: the number of the stage that takes longest, by the names that Primed gives; slowest_ns
    is its mean over the batches so far.
    """

    ns: int = 0
    slowest: int = UNKNOWN_STAGE
    slowest_ns: int = 0


NO_PRODUCTION = Production()


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """Counts of a batch: its valid rows, and its labels for each range of each input."""

    rows: int
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class BatchSlot:
    """One batch: its header, and its arrays in the inputs' order.

    header: int64[7 + n] = (rows, batch index, production's ns, slowest, slowest_ns, stage entered
    + 1, number of the pass, the batch's n counts of labels)
    """

    header: npt.NDArray[np.int64]
    arrays: tuple[Array, ...]


def slot_bytes(inputs: tuple[InputSpec, ...]) -> int:
    header = aligned(nbytes_of((header_length(inputs),), "int64"))
    return header + sum(_aligned_bytes(spec) for spec in inputs)


def header_length(inputs: tuple[InputSpec, ...]) -> int:
    """Numbers of a slot's header."""
    return HEADER_LENGTH + sum(len(spec.labels) for spec in inputs)


def _aligned_bytes(spec: InputSpec) -> int:
    return aligned(nbytes_of(spec.shape, spec.dtype))


def slot_views(memory: Bytes, inputs: tuple[InputSpec, ...], slots: int) -> list[BatchSlot]:
    """A ring's slots as arrays over its memory."""
    views = []
    for index in range(slots):
        offset = index * slot_bytes(inputs)
        header = np.asarray(view(memory, offset, (header_length(inputs),), "int64"), np.int64)
        offset += aligned(header.nbytes)
        arrays = []
        for spec in inputs:
            arrays.append(view(memory, offset, spec.shape, spec.dtype))
            offset += _aligned_bytes(spec)
        views.append(BatchSlot(header, tuple(arrays)))
    return views


def write_header(
    slot: BatchSlot, made: BatchCounts | None, index: int, cost: Production, number: int = 0
) -> None:
    """Write all of a slot's header but the stage; `number` is that of the pass."""
    rows = END_OF_DATA if made is None else made.rows
    slot.header[:5] = rows, index, cost.ns, cost.slowest, cost.slowest_ns
    slot.header[PASS] = number
    slot.header[HEADER_LENGTH:] = 0 if made is None else made.counts


class RingWriter:
    """The streamer's end: makes the ring, fills slots in order, for so many readers."""

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
        # No stage yet: what the last batch left there would be taken for this one's.
        slot.header[5] = 0
        return slot

    def enter(self, stage: int) -> None:
        """The next batch is in this stage now."""
        self._slots[self._next].header[5] = stage + 1

    @property
    def room(self) -> int:
        """The descriptor that is readable when there are more: of a reader that has given none.

        It reads none: who then waits for the descriptor would wait for what came meanwhile.
        """
        slowest = min(zip(self._waiters, self._free, strict=True), key=lambda each: each[0].known)
        return slowest[1].descriptor

    def ready(self) -> int:
        """Number of slots known to be free; 0 only when there is none."""
        return min(waiter.ready() for waiter in self._waiters)

    @property
    def known(self) -> int:
        """Number of these that were reported already."""
        return min(waiter.known for waiter in self._waiters)

    def publish(
        self,
        made: BatchCounts | None,
        index: int,
        cost: Production = NO_PRODUCTION,
        number: int = 0,
    ) -> None:
        """Hand the reserved slot to the reader: what was made in it, None at the end; its batch.

        number: of the pass over the data
        """
        write_header(self._slots[self._next], made, index, cost, number)
        self._next = (self._next + 1) % len(self._slots)
        for filled in self._filled:
            filled.raise_by()

    def close(self) -> None:
        """Close the descriptors, and let the memory go."""
        self._slots.clear()
        self._memory.close()
        for counter in (*self._filled, *self._free):
            counter.close()


def ahead_of(rings: int) -> int:
    """Number of batches that each of so many rings is to prefetch."""
    return max(LEAST_RING_SLOTS, BATCHES_AHEAD // rings)


def ring_slots_for(streamers: int, inputs: tuple[InputSpec, ...]) -> int:
    """Slots of each ring: all rings hold BATCHES_AHEAD, or fewer that take RINGS_BYTES.

    To these come the slots of a burst, which are read already.
    """
    in_bytes = RINGS_BYTES // (streamers * slot_bytes(inputs))
    return max(LEAST_RING_SLOTS, min(in_bytes, ahead_of(streamers) + BURST))


def burst_of(slots: int, ahead: int) -> int:
    """Number of slots that a ring's reader returns at once: slots of prefetched batches are never
    kept, though memory be too tight for all that should be.
    """
    return max(1, min(BURST, slots - ahead))


class RingReader:
    """The wafer's end of one ring.

    turn: of the ring among those that are read in turn; their bursts begin at different steps.
    ahead: slots that are never kept for a burst.
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
        self._burst = burst_of(slots, ahead)
        self._kept = 0  # slots that are read, and not given back yet
        # Rings that began their bursts together would wake all streamers in the same step.
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
        """Give back what is there of other passes than that of this number."""
        while self._waiter.ready() and self._slots[self._next].header[PASS] != number:
            self._waiter.take()
            self.release()

    def entered(self) -> int:
        """The stage that the next batch is in; UNKNOWN_STAGE before the first of them."""
        return int(self._slots[self._next].header[5]) - 1

    def release(self) -> None:
        """Give the slot back to the streamer, together with the others of its burst."""
        self._next = (self._next + 1) % len(self._slots)
        self._kept += 1
        if self._kept == self._to_keep:
            self._free.raise_by(self._kept)
            self._kept, self._to_keep = 0, self._burst

    def close(self) -> None:
        """Close the descriptors, and let the memory go."""
        self._slots.clear()
        for part in (self._memory, self._filled, self._free):
            part.close()
