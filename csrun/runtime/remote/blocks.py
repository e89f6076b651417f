"""Sparse transfer of gradients: blocks of zeros are not sent, e.g. unused rows of an embedding.

A group's gradients are sent completely, or as a bitmap of its nonzero blocks, followed by these
blocks. A group with mostly nonzero blocks is sent completely, and not checked again.
"""

import socket
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from csrun.executable.arrays import Array, Bytes
from csrun.executable.plan import PREFETCH_BYTES
from csrun.runtime.wire.tcp import raw, receive_few, receive_summed, send_summed, summed

BLOCK = 4096  # bytes of a block: about a row of an embedding
WORTH = 2  # share of nonzero blocks up to which blocks are sent
WHOLE, IN_BLOCKS = b"\0", b"\1"


class GradientsOut:
    """Sending end of a connection."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._whole: set[int] = set()  # groups that are sent completely without a check

    def send(self, group: int, gradients: Array) -> None:
        """Send the gradients of a group, flat."""
        data = gradients.view(np.uint8)
        found = None if group in self._whole or len(data) < PREFETCH_BYTES else _with_values(data)
        if found is None or WORTH * np.count_nonzero(found) > len(found):
            self._whole.add(group)
            self._connection.sendall(summed(WHOLE))
            send_summed(self._connection, [raw(data)])
            return
        self._connection.sendall(summed(IN_BLOCKS) + summed(np.packbits(found).tobytes()))
        send_summed(self._connection, map(raw, _parts(data, found)))


def receive_gradients(connection: socket.socket, gradients: Array, sender: str) -> None:
    """Fill a flat array with data from a `GradientsOut`; sender: name for messages.

    Raises: DamagedTransferError
    """
    data, what = gradients.view(np.uint8), f"gradients from {sender}"
    if receive_few(connection, 1, what) == WHOLE:
        receive_summed(connection, [raw(data)], what)
        return
    count = _blocks(data)
    bits = np.frombuffer(receive_few(connection, -(-count // 8), what), np.uint8)
    found = np.unpackbits(bits, count=count).astype(bool)
    for part in _parts(data, ~found):
        part.fill(0)
    receive_summed(connection, map(raw, _parts(data, found)), what)


def _blocks(data: Bytes) -> int:
    return -(-len(data) // BLOCK)


def _with_values(data: Bytes) -> npt.NDArray[np.bool_]:
    """Return for each block whether any bit is set in it."""
    whole = len(data) // BLOCK * BLOCK
    # As integers: -0.0 and NaN have bits set and must arrive.
    words = data[:whole].view(np.uint64).reshape(-1, BLOCK // 8)
    found = np.bitwise_or.reduce(words, axis=1) != 0
    return found if whole == len(data) else np.append(found, data[whole:].any())


def _parts(data: Bytes, chosen: npt.NDArray[np.bool_]) -> Iterator[Bytes]:
    """Return the selected blocks, with consecutive ones joined."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], chosen, [False]))))
    for first, end in edges.reshape(-1, 2).tolist():
        yield data[first * BLOCK : end * BLOCK]
