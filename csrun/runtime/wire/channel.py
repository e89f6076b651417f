"""Channel: messages in both directions between two roles; on one machine also descriptors.

Between processes of one machine it is a Unix socket with message boundaries (SOCK_SEQPACKET);
inside one process, the same class over a socket pair. `TcpChannel` connects machines.
"""

import os
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeVar

import msgspec

from csrun.base.errors import PeerLost
from csrun.runtime.wire.messages import AnyMessage

MAX_MESSAGE_BYTES = 64 * 1024  # far above any message, below the kernel's minimum socket buffer
MAX_DESCRIPTORS = 253  # the kernel's limit for one SCM_RIGHTS message

M = TypeVar("M", bound=AnyMessage)


class Channel(ABC):
    """One end of a connection to the peer named `peer`, for example 'streamer 3'."""

    def __init__(self, connection: socket.socket, peer: str) -> None:
        self.peer = peer
        self._socket = connection
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[AnyMessage] = msgspec.msgpack.Decoder(AnyMessage)

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: AnyMessage, descriptors: Sequence[int] = ()) -> None:
        """Send one message; the peer receives duplicates of `descriptors`.

        Raises: PeerLost if the peer is lost
        """
        try:
            self._send(self._encoder.encode(message), descriptors)
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> tuple[AnyMessage, list[int]]:
        """Wait for the next message and its descriptors, which the caller closes.

        Raises: PeerLost if the peer is lost
        """
        try:
            data, descriptors = self._receive()
        except OSError as error:
            raise self._lost() from error
        return self._decoder.decode(data), descriptors

    def expect(self, kind: type[M], descriptors: int = 0) -> tuple[M, list[int]]:
        """Wait for a message that must be of this kind, with this many descriptors.

        Raises: PeerLost if the peer is lost; RuntimeError for another message
        """
        return self.require(kind, descriptors, *self.receive())

    def require(
        self, kind: type[M], descriptors: int, message: AnyMessage, received: list[int]
    ) -> tuple[M, list[int]]:
        """Check a received message as `expect` does, and return it."""
        if not isinstance(message, kind) or len(received) != descriptors:
            raise RuntimeError(
                f"{self.peer}: expected {kind.__name__} with {descriptors} descriptors, "
                f"got {type(message).__name__} with {len(received)}"
            )
        return message, received

    def has_ended(self) -> bool:
        """Return whether the peer has closed the connection, with nothing left to read."""
        try:
            # MSG_PEEK: a waiting message must still be received.
            return not self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def abandon(self) -> None:
        """Shut down the connection, so that both sides see the other one as lost."""
        with suppress(OSError):
            # shutdown, not close: it wakes a thread that waits in recv, and the descriptor stays
            # ours.
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._socket.close()

    @abstractmethod
    def _send(self, data: bytes, descriptors: Sequence[int]) -> None:
        """Send one complete message."""

    @abstractmethod
    def _receive(self) -> tuple[bytes, list[int]]:
        """Wait for one complete message; OSError at the end of the connection."""

    def _lost(self) -> PeerLost:
        return PeerLost(f"lost the connection to {self.peer}", self.peer)


class UnixChannel(Channel):
    """Channel between processes of one machine, or inside one process."""

    def _send(self, data: bytes, descriptors: Sequence[int]) -> None:
        socket.send_fds(self._socket, [data], list(descriptors))

    def _receive(self) -> tuple[bytes, list[int]]:
        data, descriptors, _, _ = socket.recv_fds(self._socket, MAX_MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not data:
            raise ConnectionResetError
        for descriptor in descriptors:
            # recvmsg(2) without MSG_CMSG_CLOEXEC would leak them into started programs.
            os.set_inheritable(descriptor, False)
        return data, descriptors


def channel_pair(first: str, second: str) -> tuple[Channel, Channel]:
    """Return two connected channels inside one process: the end that talks to `first`, and to
    `second`.
    """
    # SOCK_SEQPACKET preserves message boundaries, so no framing is needed.
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return UnixChannel(left, first), UnixChannel(right, second)
