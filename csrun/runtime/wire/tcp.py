"""Channel between two machines over TCP; head and body of each frame have checksums.

A peer on another machine has additional connections (lines) for raw data whose size both sides
know. All machines of a job have the same byte order.

TCP has a 16-bit checksum per packet, which network cards compute and verify. Other corruption, in a
card's or a machine's memory, is detected by a checksum after all data.
"""

import select
import socket
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum

import numpy as np

from csrun.base import framing
from csrun.base.errors import CsrunError
from csrun.executable.arrays import Array
from csrun.runtime.wire.channel import MAX_MESSAGE_BYTES, Channel
from csrun.runtime.wire.shared import Overdue, StallWatch

KEEPALIVE_IDLE_S = 15  # a lost machine is noticed after 15 + 3 x 5 s
KEEPALIVE_INTERVAL_S = 5
KEEPALIVE_COUNT = 3
SUM = struct.Struct(">I")  # follows its data
PART_BYTES = 1 << 20  # block that is summed while it is in the CPU's cache, and sent or received
ROW_BYTES = 1024  # bytes whose words are added: five times as fast as a CRC-32 of all bytes


class ConnectionPurpose(StrEnum):
    """Purpose of a connection for raw data."""

    BULK = "bulk"  # batches, weights, gradients
    STATE = "state"  # of MemoryX: the tensors of a checkpoint


class TcpChannel(Channel):
    """Channel to a peer on another machine; it also closes its lines."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        super().__init__(connection, peer)
        self.lines: dict[ConnectionPurpose, socket.socket] = {}

    @property
    def bulk(self) -> socket.socket:
        """Connection for batches, or for weights and gradients."""
        return self._line(ConnectionPurpose.BULK)

    @property
    def state(self) -> socket.socket:
        """Connection for the tensors of a checkpoint."""
        return self._line(ConnectionPurpose.STATE)

    def send_array(self, array: Array) -> None:
        """Send raw data that a message has announced; PeerLost if the peer is lost."""
        try:
            send_summed(self._socket, [raw(array)])
        except OSError as error:
            raise self._lost() from error

    def receive_array(self, array: Array, overdue: Overdue | None = None) -> None:
        """Fill a contiguous array with raw data; PeerLost if the peer is lost.

        overdue: called if no data arrives for long.

        Raises: DamagedTransferError
        """
        try:
            receive_summed(self._socket, [raw(array)], f"weights from {self.peer}", overdue)
        except OSError as error:
            raise self._lost() from error

    def close(self) -> None:
        """Close this end of all connections."""
        super().close()
        for connection in self.lines.values():
            connection.close()

    def _line(self, line: ConnectionPurpose) -> socket.socket:
        if line not in self.lines:
            raise ValueError(f"{self.peer} has no connection for raw data ({line}) yet")
        return self.lines[line]

    def _send(self, data: bytes, descriptors: Sequence[int]) -> None:
        if descriptors:
            raise ValueError(f"{self.peer} is on another machine: cannot send a descriptor")
        frame = framing.encode(data)
        head, body = frame[: framing.HEAD.size], frame[framing.HEAD.size :]
        # The head has its own checksum: a corrupted length would make the reader wait for more.
        self._socket.sendall(summed(head) + summed(body))

    def _receive(self) -> tuple[bytes, list[int]]:
        what = f"messages from {self.peer}"
        head = receive_few(self._socket, framing.HEAD.size, what)
        nbytes = framing.missing_bytes(head, MAX_MESSAGE_BYTES)
        return receive_few(self._socket, nbytes, what), []  # raw data may follow: not a byte more


def raw(array: Array) -> memoryview:
    """Return the memory of a contiguous array."""
    return array.reshape(-1).view(np.uint8).data


def receive_exactly(connection: socket.socket, nbytes: int) -> bytes:
    """Receive exactly `nbytes`.

    Raises: ConnectionResetError if the connection ends before
    """
    data = bytearray(nbytes)
    receive_into(connection, memoryview(data))
    return bytes(data)


def receive_into(
    connection: socket.socket, memory: memoryview, overdue: Overdue | None = None
) -> None:
    """Fill memory; ConnectionResetError if the connection ends before.

    overdue: called with each wait for a part that does not end.
    """
    while memory:
        if overdue:
            _await(connection, overdue)
        # With `overdue` each received part counts as progress, else all is waited for at once.
        received = connection.recv_into(memory, flags=0 if overdue else socket.MSG_WAITALL)
        if not received:
            raise ConnectionResetError("the connection was closed")
        memory = memory[received:]


class DamagedTransferError(CsrunError):
    """Data that arrived with a wrong checksum."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what} arrived corrupted: checksum mismatch; check network cards, switches and "
            "memory of both machines; a restarted training resumes from its newest checkpoint"
        )


def send_summed(connection: socket.socket, parts: Iterable[memoryview]) -> None:
    """Send raw data, followed by a checksum."""
    crc32 = 0
    for piece in _pieces(parts):
        crc32 = checksum(piece, crc32)
        connection.sendall(piece)
    connection.sendall(SUM.pack(crc32))


def receive_summed(
    connection: socket.socket,
    parts: Iterable[memoryview],
    what: str,
    overdue: Overdue | None = None,
) -> None:
    """Fill memory with data from `send_summed`.

    Raises: DamagedTransferError about `what`; ConnectionResetError as `receive_into`
    """
    crc32 = 0
    for piece in _pieces(parts):
        receive_into(connection, piece, overdue)
        crc32 = checksum(piece, crc32)
    require_sum(crc32, receive_exactly(connection, SUM.size), what)


def require_sum(crc32: int, sent: bytes | memoryview, what: str) -> None:
    """Raises: DamagedTransferError if the sender's checksum differs"""
    if SUM.unpack(sent) != (crc32,):
        raise DamagedTransferError(what)


def summed(data: bytes) -> bytes:
    """Return a few bytes and their checksum, as `send_summed` sends them."""
    return data + SUM.pack(checksum(memoryview(data)))


def receive_few(connection: socket.socket, nbytes: int, what: str) -> bytes:
    """Receive `nbytes` with their checksum, as `receive_summed`."""
    data = bytearray(nbytes)
    receive_summed(connection, [memoryview(data)], what)
    return bytes(data)


def checksum(data: memoryview, before: int = 0) -> int:
    """Return the checksum of data and what precedes it: a CRC-32 of the sums of its rows and of its
    last bytes.

    Source: own design. Like a CRC-32 it misses one change in 2^32; in addition it misses a
    permutation of the words of a row.
    """
    end = len(data) // ROW_BYTES * ROW_BYTES
    if end:
        rows = np.frombuffer(data[:end], np.uint64).reshape(-1, ROW_BYTES // 8)
        before = zlib.crc32(np.add.reduce(rows, axis=1), before)
    return zlib.crc32(data[end:], before)


def _pieces(parts: Iterable[memoryview]) -> Iterator[memoryview]:
    for part in parts:
        for start in range(0, len(part), PART_BYTES):
            yield part[start : start + PART_BYTES]


def _await(connection: socket.socket, overdue: Overdue) -> None:
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    StallWatch(overdue).poll(poll)


def tune(connection: socket.socket) -> None:
    """Disable Nagle's algorithm, and enable keepalive for lost machines."""
    # Messages are small and answered: Nagle's algorithm would delay them until the last one's ACK.
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        (socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S),
        (socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S),
        (socket.TCP_KEEPCNT, KEEPALIVE_COUNT),
    ):
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
