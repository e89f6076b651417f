"""The channel between two machines: TCP, each message a frame.

A peer on another machine has a second connection as well, its *bulk*, for raw data that the two
sides know the size of: batches, weights, gradients. Machines of one job have the same byte order.
"""

import select
import socket
from collections.abc import Sequence

import numpy as np

from csrun.base import framing
from csrun.executable.bind import Array
from csrun.runtime.wire.channel import MAX_MESSAGE_BYTES, Channel
from csrun.runtime.wire.shared import Overdue, StallWatch

KEEPALIVE_IDLE_S = 15  # a machine that is gone without a word is noticed after 15 + 3 x 5 s
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_COUNT = 3


class TcpChannel(Channel):
    """The channel to a peer on another machine; `bulk` is the connection for raw data."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        super().__init__(connection, peer)
        self._bulk: socket.socket | None = None

    @property
    def bulk(self) -> socket.socket:
        """The connection for raw data; the channel closes it."""
        if self._bulk is None:
            raise ValueError(f"{self.peer} has no connection for raw data yet")
        return self._bulk

    @bulk.setter
    def bulk(self, connection: socket.socket) -> None:
        self._bulk = connection

    def send_array(self, array: Array) -> None:
        """Send raw data that a message has told of; PeerLost when the peer is gone."""
        try:
            self._socket.sendall(raw(array))
        except OSError as error:
            raise self._lost() from error

    def receive_array(self, array: Array, overdue: Overdue | None = None) -> None:
        """Wait until a contiguous array is filled with raw data; PeerLost as above.

        `overdue` is told when nothing comes for long.
        """
        try:
            receive_into(self._socket, raw(array), overdue)
        except OSError as error:
            raise self._lost() from error

    def close(self) -> None:
        """Close this end of both connections."""
        super().close()
        if self._bulk is not None:
            self._bulk.close()

    def _send(self, data: bytes, descriptors: Sequence[int]) -> None:
        if descriptors:
            raise ValueError(f"{self.peer} is on another machine: no descriptor gets there")
        self._socket.sendall(framing.encode(data))

    def _receive(self) -> tuple[bytes, list[int]]:
        frame = bytearray()
        while missing := framing.missing_bytes(frame, MAX_MESSAGE_BYTES):
            frame += receive_exactly(self._socket, missing)  # raw data may follow: not a byte more
        return bytes(frame[framing.HEAD.size :]), []


def raw(array: Array) -> memoryview:
    """The memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def receive_exactly(connection: socket.socket, nbytes: int) -> bytes:
    """So many bytes; ConnectionResetError when the connection ends before."""
    data = bytearray(nbytes)
    receive_into(connection, memoryview(data))
    return bytes(data)


def receive_into(
    connection: socket.socket, memory: memoryview, overdue: Overdue | None = None
) -> None:
    """Fill the memory; ConnectionResetError when the connection ends before.

    `overdue` is told of each wait for a part of it that does not end.
    """
    while memory:
        if overdue:
            _await(connection, overdue)
        received = connection.recv_into(memory, flags=0 if overdue else socket.MSG_WAITALL)
        if not received:
            raise ConnectionResetError("the connection has ended")
        memory = memory[received:]


def _await(connection: socket.socket, overdue: Overdue) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    StallWatch(overdue).poll(poll)


def tune(connection: socket.socket) -> None:
    """No wait for more to send, and word of a machine that is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
        (socket.TCP_KEEPCNT, KEEPALIVE_COUNT),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
