"""MemoryX on another machine: weights and gradients on its bulk, the state on its channel.

The wafer gives orders, which MemoryX carries out one after the other: a fetch that follows a
group's gradients gets the updated weights. All sizes are known from the plan on both sides. Behind
each answer is how long updates have waited for checkpoints so far, in seconds.
"""

import queue
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from functools import partial

import numpy as np

from csrun.base.errors import PeerLost
from csrun.executable.arrays import Array
from csrun.runtime.remote.blocks import GradientsOut
from csrun.runtime.wire.messages import ReadState, StateWritten, WriteState
from csrun.runtime.wire.rendezvous import MEMORYX
from csrun.runtime.wire.shared import Counter, peer_overdue
from csrun.runtime.wire.tcp import (
    DamagedTransferError,
    TcpChannel,
    raw,
    receive_summed,
    summed,
)

# What, the group or program it is about, the step; the bytes of its answer, or of what it brings.
ORDER = struct.Struct(">BIqq")
NUMBER = struct.Struct(">d")  # after it
SETTLED = np.ones(1, np.uint8)  # the answer to SETTLE


class StoreRequest(IntEnum):
    """Request of the wafer to MemoryX."""

    FETCH = 0  # send the group's weights
    GRADIENTS = 1  # they follow: update the group
    SETTLE = 2  # answer when all before this is done
    TURN = 3  # the groups of what follows are those of the program of this number
    SQUARES = 4  # send those of the step's gradients
    TOTAL = 5  # the sum of all tasks' squares follows: update all groups
    LOSS = 6  # the step's follows, of all wafers: whether it is applied; send it back
    SCALE = 7  # send the loss's scale for the step, of which the one before it is done


class StoreLink:
    """The wafer's end: sends and receives in threads of its own, while the wafer computes.

    name: MemoryX's. held_s: how long its updates have waited for checkpoints, as was told last.

    `arrived` counts what `ask` has asked for and has come, `sent` the gradients that have left;
    at the end of the connection both are raised, too, and `check` raises PeerLost.
    """

    def __init__(self, connection: socket.socket, name: str = MEMORYX) -> None:
        # The threads below wait in send and recv; a socket that came over a channel may have a
        # timeout.
        connection.setblocking(True)
        self._connection, self._name = connection, name
        self.held_s = 0.0
        self._gradients = GradientsOut(connection)
        self.arrived, self.sent = Counter.create(), Counter.create()
        self._error: OSError | DamagedTransferError | None = None
        self._outgoing: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("to memoryx", self._send), ("from memoryx", self._receive))
        ]
        for thread in self._threads:
            thread.start()

    def take_turn(self, program: int) -> None:
        """The groups of what follows are those of a program, by its number."""
        self._send_order(ORDER.pack(StoreRequest.TURN, program, 0, 0))

    def ask(
        self, order: StoreRequest, group: int, answer: Array, number: bytes = b"", step: int = 0
    ) -> None:
        """Give an order whose answer comes in its turn; a number may go with it."""
        self._send_order(ORDER.pack(order, group, step, answer.nbytes + NUMBER.size), number)
        self._incoming.put(raw(answer))

    def send_total(self, squares: float) -> None:
        """Order the update of all groups, whose gradients have this sum of squares."""
        self._send_order(ORDER.pack(StoreRequest.TOTAL, 0, 0, 0), NUMBER.pack(squares))

    def send_gradients(
        self, group: int, step: int, gradients: Array, sent: Callable[[], None]
    ) -> None:
        """Order an update; `sent` is called in the sending thread once they may change."""

        def send() -> None:
            order = ORDER.pack(StoreRequest.GRADIENTS, group, step, gradients.nbytes)
            self._connection.sendall(summed(order))
            self._gradients.send(group, gradients)
            sent()
            self.sent.raise_by()

        self._outgoing.put(send)

    def check(self) -> None:
        """Raises: PeerLost when MemoryX is lost, DamagedTransferError for what comes from it."""
        if isinstance(self._error, DamagedTransferError):
            raise self._error
        if self._error is not None:
            raise PeerLost(f"lost the connection to {self._name}", self._name) from self._error

    def close(self) -> None:
        """End the threads and close the connection."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._outgoing.put(None)
        self._incoming.put(None)
        for thread in self._threads:
            thread.join()
        self._connection.close()
        self.arrived.close()
        self.sent.close()

    def _send_order(self, order: bytes, number: bytes = b"") -> None:
        words = summed(order) + (summed(number) if number else b"")
        self._outgoing.put(partial(self._connection.sendall, words))

    def _send(self) -> None:
        while (send := self._outgoing.get()) is not None:
            try:
                send()
            except OSError as error:
                self._lose(error)

    def _receive(self) -> None:
        held = memoryview(bytearray(NUMBER.size))
        while (memory := self._incoming.get()) is not None:
            try:
                receive_summed(self._connection, [memory, held], f"weights from {self._name}")
                (self.held_s,) = NUMBER.unpack(held)
                self.arrived.raise_by()
            except (OSError, DamagedTransferError) as error:
                self._lose(error)

    def _lose(self, error: OSError | DamagedTransferError) -> None:
        self._error = self._error or error
        self.arrived.raise_by()
        self.sent.raise_by()


class ChannelPort:
    """The bytes of a store on another machine, by the channel to its MemoryX."""

    def __init__(self, channel: TcpChannel) -> None:
        self._channel = channel

    def read(self, offset_bytes: int, array: Array) -> None:
        """Fill an array with the bytes from there on."""
        self._channel.send(ReadState(offset_bytes, array.nbytes))
        self._channel.receive_array(array, peer_overdue(self._channel.peer, "send its weights"))

    def write(self, offset_bytes: int, array: Array) -> None:
        """Put the bytes of an array there."""
        self._channel.send(WriteState(offset_bytes, array.nbytes))
        self._channel.send_array(array)
        self._channel.expect(StateWritten)
