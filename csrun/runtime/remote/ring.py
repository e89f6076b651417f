"""The ring of a streamer on another machine: it sends slots, the chief's machine has the ring.

A slot travels as it lies in the ring, header and padding included: its size is known on both sides,
so nothing on this wire tells a length. The ring being full stops the reading, and TCP the sender.
"""

import os
import select
import socket
import threading
from contextlib import suppress

import numpy as np

from csrun.base.errors import PeerLost
from csrun.executable import InputSpec
from csrun.runtime.wire.messages import Stop
from csrun.runtime.wire.ring import (
    NO_PRODUCTION,
    Made,
    Production,
    Slot,
    slot_bytes,
    slot_views,
    write_header,
)
from csrun.runtime.wire.shared import Counter, Interrupted, SharedMemory
from csrun.runtime.wire.tcp import TcpChannel, raw


class BatchSender:
    """The streamer's end: one slot, sent when it is filled. As a `RingWriter` to its user."""

    def __init__(self, inputs: tuple[InputSpec, ...], control: TcpChannel) -> None:
        self._bytes = np.zeros(slot_bytes(inputs), np.uint8)
        (self._slot,) = slot_views(self._bytes, inputs, 1)
        self._control = control
        self._bulk = control.bulk
        self._bulk.setblocking(False)
        self._poll = select.poll()
        self._poll.register(self._bulk, select.POLLOUT)
        self._poll.register(control.fileno(), select.POLLIN)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """None: the ring is on the other machine."""
        return ()

    def reserve(self) -> Slot:
        """The slot, which is free; call `publish` when it is filled."""
        return self._slot

    def enter(self, stage: int) -> None:
        """Nothing is sent of a batch before it is made."""

    def publish(self, made: Made | None, index: int, cost: Production = NO_PRODUCTION) -> None:
        """Send the slot: what was made in it (None at the end of the data), its batch.

        Raises: Interrupted, PeerLost as a `Waiter` does
        """
        write_header(self._slot, made, index, cost)
        rest = raw(self._bytes)
        while rest:
            try:
                rest = rest[self._bulk.send(rest) :]
            except BlockingIOError:
                self._wait()
            except OSError as error:
                self._expect_stop()
                raise PeerLost("lost the connection to the wafer's machine") from error

    def close(self) -> None:
        """The channel closes the connection."""

    def _wait(self) -> None:
        for descriptor, _ in self._poll.poll():
            if descriptor == self._control.fileno():
                self._expect_stop()

    def _expect_stop(self) -> None:
        message, _ = self._control.expect(Stop)
        raise Interrupted(message)


class _Inflow:
    """One ring and the connection that fills it; waits for the one or the other."""

    def __init__(self, connection: socket.socket, slot_nbytes: int, slots: int) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.memory = SharedMemory.create("batches", slots * slot_nbytes)
        self.filled, self.free = Counter.create(), Counter.create()
        self._slots = [
            raw(self.memory.bytes[k * slot_nbytes : (k + 1) * slot_nbytes]) for k in range(slots)
        ]
        self._available = slots
        self._next = 0
        self._rest = self._slots[0]

    @property
    def source(self) -> int:
        """What it waits for: data, or a free slot to put it."""
        return self.connection.fileno() if self._available else self.free.descriptor

    def advance(self) -> None:
        """Take what `source` has; an OSError when the connection has ended."""
        if not self._available:
            self._available = os.eventfd_read(self.free.descriptor)
            return
        received = self.connection.recv_into(self._rest)
        if not received:
            raise ConnectionResetError
        self._rest = self._rest[received:]
        if not self._rest:
            self.filled.raise_by()
            self._available -= 1
            self._next = (self._next + 1) % len(self._slots)
            self._rest = self._slots[self._next]

    def close(self) -> None:
        """Let the memory go; the channel closes the connection."""
        self._slots.clear()
        self._rest = memoryview(b"")
        for part in (self.memory, self.filled, self.free):
            part.close()


class BatchRelay:
    """Receives the batches of streamers on other machines, in one thread, right into their rings.

    A connection that ends is let go without a word: its streamer's channel tells of the loss.
    """

    def __init__(self, inputs: tuple[InputSpec, ...], slots: int) -> None:
        self._slot_nbytes, self._slots = slot_bytes(inputs), slots
        self._inflows: list[_Inflow] = []
        self._end = Counter.create()
        self._thread = threading.Thread(target=self._receive, name="batches", daemon=True)

    def add(self, connection: socket.socket) -> tuple[int, int, int]:
        """Make a ring for a streamer's connection: what its reader needs, which owns it."""
        inflow = _Inflow(connection, self._slot_nbytes, self._slots)
        self._inflows.append(inflow)
        counters = os.dup(inflow.filled.descriptor), os.dup(inflow.free.descriptor)
        return inflow.memory.hand_over(), *counters

    def start(self) -> None:
        """Begin to receive, if there is a ring; none is added from here on."""
        if self._inflows:
            self._thread.start()

    def close(self) -> None:
        """End the thread, and let the rings go."""
        self._end.raise_by()
        if self._thread.ident is not None:
            self._thread.join()
        for inflow in self._inflows:
            inflow.close()
        self._end.close()

    def _receive(self) -> None:
        poll = select.poll()
        poll.register(self._end.descriptor, select.POLLIN)
        waiting = {inflow.source: inflow for inflow in self._inflows}
        for descriptor in waiting:
            poll.register(descriptor, select.POLLIN)
        while True:
            for descriptor, _ in poll.poll():
                if descriptor == self._end.descriptor:
                    return
                inflow = waiting.pop(descriptor)
                poll.unregister(descriptor)
                with suppress(OSError):  # of one that has ended nothing is awaited any more
                    with suppress(BlockingIOError):
                        inflow.advance()
                    waiting[inflow.source] = inflow
                    poll.register(inflow.source, select.POLLIN)
