"""Checkpoint of a MemoryX on another machine: its tensors are sent once, while steps run.

They have a separate connection, so weights and gradients never wait for them. The chief requests
tensors in order, several ahead of the one being received. A thread of MemoryX sends each with its
values at the start of the checkpoint, and counts it for the updates that wait.
"""

import socket
import struct
import threading
import zlib
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from enum import IntEnum
from functools import partial

import numpy as np

from csrun.base.errors import PeerLost
from csrun.executable import Plan, state_layout
from csrun.executable.arrays import Array, Bytes
from csrun.executable.shards import Own
from csrun.executable.store_places import TensorPlace
from csrun.records.tensor_files import Blocks
from csrun.runtime.step.finite import PIECE_BYTES
from csrun.runtime.step.update_gate import UpdateGate, copying_order
from csrun.runtime.store.backing import Store
from csrun.runtime.wire.shared import Counter, Waiter, peer_overdue
from csrun.runtime.wire.tcp import (
    SUM,
    DamagedTransferError,
    TcpChannel,
    raw,
    receive_few,
    receive_into,
    receive_summed,
    summed,
)

REQUEST = struct.Struct(">BI")  # request, and the index of the tensor in the agreed order
HELD = b"\1"  # the reply to HOLD
AHEAD_BYTES = 8 << 20  # bytes requested ahead: more than a round trip carries at 10 GB/s


class StateRequest(IntEnum):
    """Request of the chief for the tensors of a checkpoint."""

    HOLD = 0  # make updates wait for the tensors that they change; reply: HELD
    SEND = 1  # send a tensor, then its checksum
    END = 2  # no more requests: updates need not wait


class SentState:
    """Chief's end: one task's tensors of a checkpoint, in the order of copying."""

    def __init__(self, plan: Plan, own: Own, channel: TcpChannel) -> None:
        self._layout = state_layout(plan, own)
        self._order = copying_order(plan, own)
        self._connection, self._name = channel.state, channel.peer
        self._overdue = peer_overdue(channel.peer, "send its weights")
        self._to_request: deque[int] = deque()
        self._to_receive: deque[str] = deque()
        self._requested_bytes = 0  # requested so far
        self._piece = np.empty(PIECE_BYTES, np.uint8)
        self._sum = 0  # of the tensor that has arrived

    def hold(self) -> dict[str, Blocks]:
        """Make updates wait; return the tensors, which must be read once each, in the given order.

        Raises: DamagedTransferError, PeerLost
        """
        self._send(StateRequest.HOLD)
        for _ in self._pieces(self._requested_bytes):  # of an abandoned checkpoint
            pass
        self._receive_word()
        self._to_request, self._to_receive = deque(range(len(self._order))), deque(self._order)
        return {name: self._tensor(name) for name in self._order}

    def end(self) -> None:
        """End the requests."""
        with suppress(PeerLost):
            self._send(StateRequest.END)

    def _tensor(self, name: str) -> Blocks:
        place = self._layout[name]
        return Blocks(place.shape, np.dtype(place.dtype), partial(self._rows, name), self._check)

    def _rows(self, name: str) -> Iterator[Array]:
        if name != (turn := self._to_receive.popleft()):
            raise RuntimeError(f"{self._name}: {name} requested before {turn}")
        place = self._layout[name]
        self._request_ahead()
        for piece in self._pieces(place.nbytes):
            yield piece.view(place.dtype)
            self._request_ahead()
        received_sum = np.empty(SUM.size, np.uint8)
        self._receive(received_sum)
        self._requested_bytes -= SUM.size
        (self._sum,) = SUM.unpack(raw(received_sum))

    def _check(self, crc32: int) -> None:
        if crc32 != self._sum:
            raise DamagedTransferError(f"a checkpoint's tensors from {self._name}")

    def _request_ahead(self) -> None:
        while self._to_request and self._requested_bytes < AHEAD_BYTES:
            tensor = self._to_request.popleft()
            self._send(StateRequest.SEND, tensor)
            self._requested_bytes += self._layout[self._order[tensor]].nbytes + SUM.size

    def _pieces(self, nbytes: int) -> Iterator[Bytes]:
        """Yield received bytes in pieces, all in the same buffer."""
        while nbytes:
            piece = self._piece[:nbytes]
            self._receive(piece)
            nbytes -= piece.size
            self._requested_bytes -= piece.size
            yield piece

    def _send(self, request: StateRequest, tensor: int = 0) -> None:
        try:
            self._connection.sendall(summed(REQUEST.pack(request, tensor)))
        except OSError as error:
            raise self._lost() from error

    def _receive(self, array: Array) -> None:
        try:
            receive_into(self._connection, raw(array), self._overdue)
        except OSError as error:
            raise self._lost() from error

    def _receive_word(self) -> None:
        """Receive the reply to HOLD. Raises: DamagedTransferError, PeerLost"""
        word = memoryview(bytearray(len(HELD)))
        try:
            receive_summed(self._connection, [word], f"answers from {self._name}", self._overdue)
        except OSError as error:
            raise self._lost() from error

    def _lost(self) -> PeerLost:
        return PeerLost(f"lost the connection to {self._name}", self._name)


class StateSender:
    """MemoryX's end: a thread that sends the requested tensors while updates run.

    plan: plan that defines the layout of the store.
    gate: gate of the updates, used only here.
    error: error that ended the thread; the chief sees a lost connection.
    """

    def __init__(self, control: TcpChannel, plan: Plan, store: Store, gate: UpdateGate) -> None:
        self._control, self._connection = control, control.state
        self.error: Exception | None = None
        self._store, self._gate = store, gate
        layout = state_layout(plan, store.own)
        self._places = [layout[name] for name in copying_order(plan, store.own)]
        self._sent = Counter.create()  # of the newest checkpoint
        self._left = 0  # its tensors that are still to be sent
        self._thread = threading.Thread(target=self._serve, name="state", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread; the channel closes the connection."""
        with suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._sent.close()

    def _serve(self) -> None:
        """Serve until the connection ends; the chief handles its loss."""
        what = "orders of a checkpoint from the chief"
        try:
            while True:
                self._handle(*REQUEST.unpack(receive_few(self._connection, REQUEST.size, what)))
        except OSError:
            pass
        except Exception as error:
            self.error = error
        finally:
            self._count(self._left)
            with suppress(OSError):
                self._connection.shutdown(socket.SHUT_RDWR)

    def _handle(self, request: int, tensor: int) -> None:
        match StateRequest(request):
            case StateRequest.HOLD:
                self._hold()
                self._connection.sendall(summed(HELD))
            case StateRequest.SEND:
                self._send(self._places[tensor])
                self._count(1)
            case StateRequest.END:
                self._count(self._left)

    def _hold(self) -> None:
        """Make updates wait. Called between two orders: the chief sends none before the reply."""
        self._sent.close()
        self._sent = Counter.create()
        self._left = self._gate.hold(Waiter(self._sent, self._control).take)

    def _send(self, place: TensorPlace) -> None:
        crc32 = 0  # the checksum of the manifest, so the chief need not compute it
        for piece in self._pieces(place):
            crc32 = zlib.crc32(piece, crc32)
            self._connection.sendall(piece)
        self._connection.sendall(SUM.pack(crc32))

    def _pieces(self, place: TensorPlace) -> Iterator[memoryview]:
        tensor, pages = place.view(self._store.memory.bytes), self._store.pages
        first, end = place.offset_bytes, place.offset_bytes + place.nbytes
        if place.is_transposed:
            rows = max(1, PIECE_BYTES // tensor[0].nbytes)
            for row in range(0, len(tensor), rows):
                yield raw(np.ascontiguousarray(tensor[row : row + rows]))
            pages.evict(range(first, end))
            return
        for start in range(first, end, PIECE_BYTES):
            part = range(start, min(start + PIECE_BYTES, end))
            yield self._store.memory.bytes[part.start : part.stop].data
            pages.evict(part)

    def _count(self, tensors: int) -> None:
        self._left -= tensors
        if tensors:
            self._sent.raise_by(tensors)
