"""Ring of a streamer on another machine: it sends slots to the ring on the chief's machine.

A slot is sent as it is in the ring, with header and padding, after the number of its program; a
checksum follows each. Both sides know the sizes. The other direction carries the number of freed
slots of each program's ring. No more slots are sent than are free, so a ring that is not read for a
while never blocks another one.
"""

import os
import queue
import select
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Collection, Generator
from contextlib import suppress

import numpy as np

from csrun.base.errors import PeerLost
from csrun.executable import ALIGNMENT_BYTES, InputSpec
from csrun.executable.arrays import Bytes
from csrun.runtime.wire.ring import (
    NO_PRODUCTION,
    BatchCounts,
    BatchSlot,
    Production,
    slot_bytes,
    slot_views,
    write_header,
)
from csrun.runtime.wire.shared import Counter, Inbox, SharedMemory
from csrun.runtime.wire.tcp import (
    SUM,
    DamagedTransferError,
    TcpChannel,
    checksum,
    raw,
    require_sum,
    summed,
)

SOURCE = struct.Struct("=q")  # before a slot: the number of its program
ROOM = struct.Struct("=qq")  # number of freed slots of a program's ring
SUMMED_ROOM = ROOM.size + SUM.size


class SlotSender:
    """A streamer's connection to the wafer's machine, shared by all of its rings.

    Raises: Interrupted, PeerLost as a `Waiter` does
    """

    def __init__(self, inbox: Inbox, bulk: socket.socket) -> None:
        # A full connection must not keep the streamer from receiving the chief's Stop.
        bulk.setblocking(False)
        self._inbox, self._bulk = inbox, bulk
        self._room: defaultdict[int, int] = defaultdict(int)
        self._received = b""
        self._poll = select.poll()
        self._poll.register(bulk, select.POLLOUT)
        self._poll.register(inbox.control.fileno(), select.POLLIN)

    def fileno(self) -> int:
        """Descriptor that is readable when more slots may be free."""
        return self._bulk.fileno()

    def room(self, source: int) -> int:
        """Return the number of free slots of a program, as far as known; 0 only if there is none.

        It may also receive messages about other programs, which `ready_count` returns.
        """
        if not self._room[source]:
            self._receive_freed()
        return self._room[source]

    def ready_count(self, source: int) -> int:
        """Return the number of free slots that have been reported already."""
        return self._room[source]

    def send(self, source: int, frame: Bytes) -> None:
        """Send a slot, preceded by its program's number."""
        self._room[source] -= 1
        rest = raw(frame)
        while rest:
            try:
                rest = rest[self._bulk.send(rest) :]
            except BlockingIOError:
                self._wait()
            except OSError as error:
                raise self._lost() from error

    def _receive_freed(self) -> None:
        try:
            received = self._bulk.recv(4096)
        except BlockingIOError:
            return
        except OSError as error:
            raise self._lost() from error
        if not received:
            raise self._lost()
        self._received += received
        while len(self._received) >= SUMMED_ROOM:
            message, self._received = self._received[:SUMMED_ROOM], self._received[SUMMED_ROOM:]
            count, received_sum = message[: ROOM.size], message[ROOM.size :]
            require_sum(
                checksum(memoryview(count)),
                received_sum,
                f"counts of free slots from {self._inbox.control.peer}",
            )
            source, slots = ROOM.unpack(count)
            self._room[source] += slots

    def _wait(self) -> None:
        for descriptor, _ in self._poll.poll():
            if descriptor == self._inbox.control.fileno():
                self._inbox.keep()

    def _lost(self) -> PeerLost:
        """Raise the chief's last message if there is one: it closes the connection at the end."""
        while True:
            try:
                self._inbox.keep()
            except PeerLost:
                return PeerLost("lost the connection to the wafer's machine")


class BatchSender:
    """Writer of a ring on another machine: one local slot, sent when filled. Same interface as
    `RingWriter`.
    """

    def __init__(self, inputs: tuple[InputSpec, ...], link: SlotSender, source: int) -> None:
        memory = np.zeros(ALIGNMENT_BYTES + slot_bytes(inputs) + SUM.size, np.uint8)
        self._bytes = memory[ALIGNMENT_BYTES : -SUM.size]
        (self._slot,) = slot_views(self._bytes, inputs, 1)
        head = np.frombuffer(summed(SOURCE.pack(source)), np.uint8)
        self._frame = memory[ALIGNMENT_BYTES - len(head) :]
        self._frame[: len(head)] = head
        self._link, self._source = link, source

    @property
    def descriptors(self) -> tuple[int, ...]:
        """None: the ring is on the other machine."""
        return ()

    @property
    def room(self) -> int:
        """Descriptor that is readable when more slots may be free."""
        return self._link.fileno()

    def ready(self) -> int:
        """Number of slots known to be free; 0 only if there is none."""
        return self._link.room(self._source)

    @property
    def ready_count(self) -> int:
        """Number of free slots that have been reported already."""
        return self._link.ready_count(self._source)

    def reserve(self) -> BatchSlot:
        """Wait for a free slot; call `publish` when it is filled."""
        return self._slot

    def enter(self, stage: int) -> None:
        """Do nothing: the stage of an incomplete batch is not sent."""

    def publish(
        self,
        made: BatchCounts | None,
        index: int,
        cost: Production = NO_PRODUCTION,
        number: int = 0,
    ) -> None:
        """Send the slot: its production (None at the end of the data), its batch index, its
        pass.
        """
        write_header(self._slot, made, index, cost, number)
        packed_sum = SUM.pack(checksum(self._bytes.data))
        self._frame[-SUM.size :] = np.frombuffer(packed_sum, np.uint8)
        self._link.send(self._source, self._frame)

    def close(self) -> None:
        """Do nothing: the channel closes the connection."""


class _Ring:
    """A ring that is filled from a connection; at most as many slots arrive as it reported free.

    All of its readers read every slot; it is free when the last one has returned it.
    """

    def __init__(self, source: int, slot_nbytes: int, slots: int, readers: int) -> None:
        self.source = source
        self.memory = SharedMemory.create("batches", slots * slot_nbytes)
        self._filled = [Counter.create() for _ in range(readers)]
        self._free = {free.descriptor: free for free in (Counter.create() for _ in range(readers))}
        for free in self._free.values():
            free.raise_by(slots)
        # returned by each reader, beyond what was reported
        self._freed = dict.fromkeys(self._free, 0)
        self._slots = [
            raw(self.memory.bytes[k * slot_nbytes : (k + 1) * slot_nbytes]) for k in range(slots)
        ]
        self._next = 0

    @property
    def free(self) -> Collection[int]:
        """Descriptors that are readable when a reader has returned slots."""
        return self._free

    @property
    def counters(self) -> list[tuple[int, int]]:
        """Counters of each reader: filled, free."""
        return list(zip((each.descriptor for each in self._filled), self._free, strict=True))

    def read_free(self, descriptor: int) -> int:
        """Read the slots that a reader has returned; return how many more are free."""
        before = min(self._freed.values())
        self._freed[descriptor] += os.eventfd_read(descriptor)
        return min(self._freed.values()) - before

    @property
    def slot(self) -> memoryview:
        """The memory of the next slot."""
        return self._slots[self._next]

    def publish(self) -> None:
        """Publish that slot as filled."""
        self._next = (self._next + 1) % len(self._slots)
        for filled in self._filled:
            filled.raise_by()

    def close(self) -> None:
        self._slots.clear()
        self.memory.close()
        for counter in (*self._filled, *self._free.values()):
            counter.close()


class _StreamerReceiver:
    """A streamer's connection and the rings that it fills."""

    def __init__(self, channel: TcpChannel) -> None:
        self.channel, self.connection = channel, channel.bulk
        self.connection.setblocking(False)
        self.rings: dict[int, _Ring] = {}
        self._head = memoryview(bytearray(SOURCE.size + SUM.size))
        self._sum = memoryview(bytearray(SUM.size))
        self._parts = self._to_fill()
        self._rest = next(self._parts)

    def advance(self) -> None:
        """Receive available data, up to one slot; OSError if there is none, or if the connection
        has ended.

        Raises: DamagedTransferError
        """
        while True:
            received = self.connection.recv_into(self._rest)
            if not received:
                raise ConnectionResetError
            self._rest = self._rest[received:]
            if self._rest:
                return
            self._rest = next(self._parts)
            if self._rest is self._head:
                return

    def _to_fill(self) -> Generator[memoryview, None, None]:
        """Yield the buffers of incoming data; each is full when the generator continues."""
        what = f"batches from {self.channel.peer}"
        while True:
            yield self._head
            number, received_sum = self._head[: SOURCE.size], self._head[SOURCE.size :]
            require_sum(checksum(number), received_sum, what)
            ring = self.rings[SOURCE.unpack(number)[0]]
            yield ring.slot
            yield self._sum
            require_sum(checksum(ring.slot), self._sum, what)
            ring.publish()

    def report_free_slots(self, ring: _Ring, descriptor: int) -> None:
        """Report freed slots of a ring after one of its readers has returned some.

        This never blocks: at most as many reports are unread as there are slots.
        """
        if freed := ring.read_free(descriptor):
            self.connection.send(summed(ROOM.pack(ring.source, freed)))

    def close(self) -> None:
        """Free the memory; the channel closes the connection."""
        self._parts.close()
        self._rest = self._head
        for ring in self.rings.values():
            ring.close()


class BatchRelay:
    """Receives batches of streamers on other machines directly into their rings, in one thread.

    A closed connection is dropped without an error, since the streamer's channel reports the loss.
    The connection of a streamer whose batches are corrupted is abandoned; `damage` has the reason.
    """

    def __init__(self) -> None:
        self.damage: DamagedTransferError | None = None
        self._inflows: dict[int, _StreamerReceiver] = {}
        self._added: queue.SimpleQueue[tuple[_StreamerReceiver, _Ring]] = queue.SimpleQueue()
        self._woken = Counter.create()
        self._is_over = False
        self._thread = threading.Thread(target=self._receive, name="batches", daemon=True)

    def add(
        self,
        channel: TcpChannel,
        source: int,
        inputs: tuple[InputSpec, ...],
        slots: int,
        readers: int = 1,
    ) -> list[tuple[int, int, int]]:
        """Create a program's ring for a streamer's channel; return what each reader needs and owns.

        The memory is the same descriptor for all. Receiving starts with the first ring.
        """
        inflow = self._inflows.setdefault(channel.bulk.fileno(), _StreamerReceiver(channel))
        inflow.rings[source] = ring = _Ring(source, slot_bytes(inputs), slots, readers)
        memory = ring.memory.detach_descriptor()
        # duplicates, since each reader closes its own
        parts = [(memory, os.dup(filled), os.dup(free)) for filled, free in ring.counters]
        self._added.put((inflow, ring))
        self._woken.raise_by()
        if self._thread.ident is None:
            self._thread.start()
        return parts

    def close(self) -> None:
        """Stop the thread, and free the rings."""
        self._is_over = True
        self._woken.raise_by()
        if self._thread.ident is not None:
            self._thread.join()
        for inflow in self._inflows.values():
            inflow.close()
        self._woken.close()

    def _receive(self) -> None:
        poll = select.poll()
        poll.register(self._woken.descriptor, select.POLLIN)
        rings: dict[int, tuple[_StreamerReceiver, _Ring]] = {}
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._woken.descriptor:
                    if self._is_over:
                        return
                    self._take_in(poll, rings)
                    continue
                try:
                    with suppress(BlockingIOError):
                        if descriptor in rings:
                            inflow, ring = rings[descriptor]
                            inflow.report_free_slots(ring, descriptor)
                        else:
                            self._inflows[descriptor].advance()
                except OSError:  # a closed connection is no longer polled
                    poll.unregister(descriptor)
                except DamagedTransferError as error:
                    poll.unregister(descriptor)
                    self.damage = error
                    self._inflows[descriptor].channel.abandon()

    def _take_in(
        self, poll: select.poll, rings: dict[int, tuple[_StreamerReceiver, _Ring]]
    ) -> None:
        """Take over the rings that were added."""
        os.eventfd_read(self._woken.descriptor)
        while not self._added.empty():
            inflow, ring = self._added.get()
            rings |= dict.fromkeys(ring.free, (inflow, ring))
            for descriptor in (*ring.free, inflow.connection.fileno()):
                poll.register(descriptor, select.POLLIN)
