"""Requests to a MemoryX on another machine: weights and gradients on its bulk connection, state on
its channel.

The wafer sends requests, which MemoryX executes in order: a fetch after a group's gradients gets
the updated weights. Both sides know all sizes from the plan. Each reply ends with the time in
seconds for which updates have waited for checkpoints so far.
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

# request, index of group or program, step; bytes of the reply, or of the payload.
ORDER = struct.Struct(">BIqq")
NUMBER = struct.Struct(">d")  # after the reply
SETTLED = np.ones(1, np.uint8)  # the reply to SETTLE


class StoreRequest(IntEnum):
    """Request of the wafer to MemoryX."""

    FETCH = 0  # send the group's weights
    GRADIENTS = 1  # the group's gradients follow: update the group
    SETTLE = 2  # reply when all earlier requests are done
    TURN = 3  # later group indices are those of the program of this number
    SQUARES = 4  # send the sums of squares of the step's gradients
    TOTAL = 5  # the sum over all tasks follows: update all groups
    LOSS = 6  # the step's loss over all wafers follows: reply with it, and decide on the updates
    SCALE = 7  # send the loss scale for the step, whose previous step is complete


class StoreLink:
    """Wafer's end: threads send and receive while the wafer computes.

    name: name of the MemoryX task.
    held_s: how long its updates have waited for checkpoints, as last reported.

    `arrived` counts replies to `ask`, `sent` counts sent gradients. Both are also raised when the
    connection ends; `check` then raises PeerLost.
    """

    def __init__(self, connection: socket.socket, name: str = MEMORYX) -> None:
        # The threads below wait in send and recv; a socket from a channel may have a timeout.
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
        """Use the group indices of a program from now on, by its number."""
        self._send_order(ORDER.pack(StoreRequest.TURN, program, 0, 0))

    def request(
        self, order: StoreRequest, group: int, reply: Array, number: bytes = b"", step: int = 0
    ) -> None:
        """Send a request with a reply, optionally with a number."""
        self._send_order(ORDER.pack(order, group, step, reply.nbytes + NUMBER.size), number)
        self._incoming.put(raw(reply))

    def send_total(self, squares: float) -> None:
        """Request the update of all groups, with this sum of squares of the gradients."""
        self._send_order(ORDER.pack(StoreRequest.TOTAL, 0, 0, 0), NUMBER.pack(squares))

    def send_gradients(
        self, group: int, step: int, gradients: Array, sent: Callable[[], None]
    ) -> None:
        """Request an update; `sent` is called in the sending thread once the gradients may
        change.
        """

        def send() -> None:
            order = ORDER.pack(StoreRequest.GRADIENTS, group, step, gradients.nbytes)
            self._connection.sendall(summed(order))
            self._gradients.send(group, gradients)
            sent()
            self.sent.raise_by()

        self._outgoing.put(send)

    def check(self) -> None:
        """Raises: PeerLost if MemoryX is lost, DamagedTransferError if its data are corrupted"""
        if isinstance(self._error, DamagedTransferError):
            raise self._error
        if self._error is not None:
            raise PeerLost(f"lost the connection to {self._name}", self._name) from self._error

    def close(self) -> None:
        """Stop the threads and close the connection."""
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
    """Access to the bytes of a store on another machine, by the channel to its MemoryX."""

    def __init__(self, channel: TcpChannel) -> None:
        self._channel = channel

    def read(self, offset_bytes: int, array: Array) -> None:
        """Fill an array with the bytes at an offset."""
        self._channel.send(ReadState(offset_bytes, array.nbytes))
        self._channel.receive_array(array, peer_overdue(self._channel.peer, "send its weights"))

    def write(self, offset_bytes: int, array: Array) -> None:
        """Write the bytes of an array at an offset."""
        self._channel.send(WriteState(offset_bytes, array.nbytes))
        self._channel.send_array(array)
        self._channel.expect(StateWritten)
