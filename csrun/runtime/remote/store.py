"""MemoryX on another machine: weights and gradients on its bulk, the state on its channel.

The wafer gives orders, which MemoryX carries out one after the other: a fetch that follows a
group's gradients gets the updated weights. All sizes are known from the plan on both sides.
"""

import queue
import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from enum import IntEnum
from functools import partial
from math import prod
from typing import Any, cast

import numpy as np

from csrun.base.errors import PeerLost
from csrun.executable import Plan, nbytes_of, state_layout
from csrun.executable.bind import Array, numbers_layout
from csrun.runtime.wire.messages import ReadState, StateWritten, WriteState
from csrun.runtime.wire.shared import Counter, peer_overdue
from csrun.runtime.wire.tcp import TcpChannel, raw, receive_into

ORDER = struct.Struct(">BI")  # what, the group or program it is about
SETTLED = np.ones(1, np.uint8)  # the answer to SETTLE


class Order(IntEnum):
    """What the wafer asks MemoryX to do."""

    FETCH = 0  # send the group's weights
    GRADIENTS = 1  # they follow: update the group
    SETTLE = 2  # answer when all before this is done
    TURN = 3  # the groups of what follows are those of the program of this number


class StoreLink:
    """The wafer's end: sends and receives in threads of its own, while the wafer computes.

    `arrived` counts what `receive` has asked for and has come, `sent` the gradients that have left;
    at the end of the connection both are raised, too, and `check` raises PeerLost.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._connection = connection
        self.arrived, self.sent = Counter.create(), Counter.create()
        self._error: OSError | None = None
        self._outgoing: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._incoming: queue.SimpleQueue[memoryview | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=work, name=name, daemon=True)
            for name, work in (("to memoryx", self._send), ("from memoryx", self._receive))
        ]
        for thread in self._threads:
            thread.start()

    def order(self, order: Order, group: int = 0) -> None:
        """Give an order that is nothing but its name."""
        self._outgoing.put(partial(self._connection.sendall, ORDER.pack(order, group)))

    def send_gradients(self, group: int, gradients: Array, sent: Callable[[], None]) -> None:
        """Order an update; `sent` is called in the sending thread once they may change."""

        def send() -> None:
            self._connection.sendall(ORDER.pack(Order.GRADIENTS, group))
            self._connection.sendall(raw(gradients))
            sent()
            self.sent.raise_by()

        self._outgoing.put(send)

    def receive(self, array: Array) -> None:
        """Fill the array with what comes next."""
        self._incoming.put(raw(array))

    def check(self) -> None:
        """Raises: PeerLost when MemoryX is lost."""
        if self._error is not None:
            raise PeerLost("lost the connection to memoryx", "memoryx") from self._error

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

    def _send(self) -> None:
        while (send := self._outgoing.get()) is not None:
            try:
                send()
            except OSError as error:
                self._lose(error)

    def _receive(self) -> None:
        while (memory := self._incoming.get()) is not None:
            try:
                receive_into(self._connection, memory)
                self.arrived.raise_by()
            except OSError as error:
                self._lose(error)

    def _lose(self, error: OSError) -> None:
        self._error = error
        self.arrived.raise_by()
        self.sent.raise_by()


class RemoteTensor:
    """A tensor of MemoryX's state, as the chief reads and writes it: as an array, piece by piece.

    `np.asarray` reads it; `t[...] = values` writes it; a flat one has slices `t[a:b]`.
    """

    def __init__(
        self, channel: TcpChannel, offset_bytes: int, shape: tuple[int, ...], dtype: str
    ) -> None:
        self._channel = channel
        self._offset_bytes = offset_bytes
        self.shape = shape
        self.dtype = np.dtype(dtype)
        self.size = prod(shape)
        self.nbytes = nbytes_of(shape, dtype)

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = np.empty(self.shape, self.dtype)
        self._channel.send(ReadState(self._offset_bytes, self.nbytes))
        self._channel.receive_array(array, peer_overdue("memoryx", "send its weights"))
        return array if dtype is None else array.astype(dtype)

    def __getitem__(self, part: slice) -> "RemoteTensor":
        """A part of a flat tensor."""
        start, stop, _ = part.indices(len(self))
        offset_bytes = self._offset_bytes + start * self.dtype.itemsize
        return RemoteTensor(self._channel, offset_bytes, (stop - start,), self.dtype.name)

    def __setitem__(self, every: Any, values: Any) -> None:
        if every is not ...:
            raise TypeError("a tensor on another machine is written whole: tensor[...] = values")
        array = np.ascontiguousarray(np.broadcast_to(values, self.shape), self.dtype)
        self._channel.send(WriteState(self._offset_bytes, self.nbytes))
        self._channel.send_array(array)
        self._channel.expect(StateWritten)

    def reshape(self, _: int) -> "RemoteTensor":
        return RemoteTensor(self._channel, self._offset_bytes, (self.size,), self.dtype.name)


def remote_state(plan: Plan, channel: TcpChannel) -> dict[str, Array]:
    """What a checkpoint holds, as `state_views` gives it for a store of this machine."""
    return {
        name: cast(Array, RemoteTensor(channel, offset, shape, dtype))
        for name, (offset, shape, dtype) in state_layout(plan).items()
    }


def remote_numbers(plan: Plan, channel: TcpChannel) -> Array | None:
    """The numbers of the steps, as `numbers_view` gives them for a store of this machine."""
    place = numbers_layout(plan)
    return None if place is None else cast(Array, RemoteTensor(channel, *place))
