"""Listening sockets of the chief: a Unix socket for peers of its machine, a TCP port for others.

A connection only has the state of its challenge. It is closed after a wrong message, a message
longer than the limit, at the deadline, or when too many unauthenticated connections are open.
"""

import logging
import select
import socket
from dataclasses import dataclass, field
from time import monotonic

import msgspec

from csrun.base import stored
from csrun.base.errors import CsrunError, PeerLost
from csrun.base.files import make_private
from csrun.base.stored import UNREADABLE
from csrun.runtime.wire import handshake
from csrun.runtime.wire.channel import Channel, UnixChannel
from csrun.runtime.wire.rendezvous import (
    SAME_CALLS,
    Endpoint,
    RunFolder,
    connection_names,
    new_unix_name,
    require_own_account,
)
from csrun.runtime.wire.shared import StallWatch
from csrun.runtime.wire.tcp import TcpChannel, tune

MAX_PENDING = 128  # maximum number of unauthenticated connections; the oldest one is closed
BACKLOG = 4096  # Linux limits it to net.core.somaxconn
SHOWN_NAMES = 8  # names in a log line
LOOK_FOR_ENDED_S = 1.0  # seconds between log lines while a peer is missing

log = logging.getLogger("csrun")


@dataclass
class _PendingConnection:
    """Connection that has not been authenticated yet."""

    connection: socket.socket
    frames: handshake.Frames
    deadline: float = field(default_factory=lambda: monotonic() + handshake.HANDSHAKE_DEADLINE_S)
    hello: handshake.Hello | None = None
    nonce: bytes = b""


class Listener:
    """Accepts exactly the expected peers, once each."""

    def __init__(self, folder: RunFolder) -> None:
        make_private(folder.path)
        self._folder = folder
        self._poll = select.poll()
        self._pending: dict[int, _PendingConnection] = {}
        self._names_taken: set[str] = set()
        self._listening: dict[int, socket.socket] = {}
        unix, port = new_unix_name(), None
        # Listen before the endpoint is written, since a reader can connect immediately.
        self._open(_unix_socket(unix))
        if folder.host is not None:
            try:
                port = self._open(_tcp_socket(folder.host.address)).getsockname()[1]
            except OSError as error:
                self.close()
                raise CsrunError(
                    f"node {folder.host.name}: cannot listen on {folder.host.address}: "
                    f"{error.strerror}; check the node's address"
                ) from error
        endpoint = Endpoint(unix, folder.host, port)
        stored.write(folder.endpoint, endpoint, durable=False)

    def accept(self, expected: set[str]) -> dict[str, Channel]:
        """Wait until all expected peers have joined, those of other machines with their lines.

        Raises: PeerLost if one of them has ended instead
        """
        joined: dict[str, Channel] = {}
        missing = set(expected)
        look_s = monotonic() + LOOK_FOR_ENDED_S
        stall_watch = StallWatch(
            lambda seconds: log.warning(_joining_awaited(sorted(missing), seconds))
        )
        while missing:
            events = self._poll.poll(LOOK_FOR_ENDED_S * 1000)
            # checked also while unauthenticated connections keep arriving
            if monotonic() >= look_s:
                self._require_living(missing)
                stall_watch.check()
                look_s = monotonic() + LOOK_FOR_ENDED_S
            for descriptor, _ in events:
                if descriptor in self._listening:
                    self._accept(self._listening[descriptor])
                elif pending := self._pending.get(descriptor):  # otherwise closed meanwhile
                    self._advance(pending, missing, joined)
            self._drop_late()
        return joined

    def close(self) -> None:
        """Close the sockets and all unauthenticated connections."""
        for descriptor in list(self._pending):
            self._forget(descriptor).close()
        for descriptor, listening in self._listening.items():
            self._poll.unregister(descriptor)
            listening.close()
        self._listening.clear()

    def _open(self, listening: socket.socket) -> socket.socket:
        # A connection that is closed before accept must not block the loop.
        listening.setblocking(False)
        self._listening[listening.fileno()] = listening
        self._poll.register(listening, select.POLLIN)
        return listening

    def _require_living(self, missing: set[str]) -> None:
        for peer in sorted(missing):
            if self._folder.has_ended(peer):
                said = f"{peer} ended before it joined this run: {SAME_CALLS}"
                raise PeerLost(said, peer)

    def _accept(self, listening: socket.socket) -> None:
        try:
            connection, _ = listening.accept()
        except OSError:  # it was closed meanwhile
            return
        try:
            if connection.family == socket.AF_UNIX:
                require_own_account(connection)
            else:
                tune(connection)
        except OSError:
            connection.close()
            return
        if len(self._pending) >= MAX_PENDING:
            self._forget(next(iter(self._pending))).close()
        # A silent connection must not block the others.
        connection.setblocking(False)
        self._pending[connection.fileno()] = _PendingConnection(
            connection, handshake.Frames(connection)
        )
        self._poll.register(connection, select.POLLIN)

    def _forget(self, descriptor: int) -> socket.socket:
        self._poll.unregister(descriptor)
        return self._pending.pop(descriptor).connection

    def _drop_late(self) -> None:
        now = monotonic()
        for descriptor in [d for d, s in self._pending.items() if s.deadline < now]:
            self._forget(descriptor).close()

    def _advance(
        self, pending: _PendingConnection, missing: set[str], joined: dict[str, Channel]
    ) -> None:
        """Process received data of a challenge; a wrong message closes the connection without a
        reply.
        """
        descriptor = pending.connection.fileno()
        try:
            data = pending.frames.receive()
            if data is None:
                return
            if pending.hello is None:
                self._challenge(
                    pending, msgspec.msgpack.decode(data, type=handshake.Hello), missing
                )
                return
            self._require_proof(pending, pending.hello, data, missing)
            is_second = pending.hello.peer not in missing
            answer = handshake.NameTaken() if is_second else handshake.Welcome()
            handshake.send_frame(pending.connection, answer)
        except BlockingIOError:  # the event was for an earlier connection with this descriptor
            return
        except (OSError, *UNREADABLE):
            self._forget(descriptor).close()
            return
        connection, name = self._forget(descriptor), pending.hello.peer
        if is_second:
            connection.close()
            log.warning(f"Rejected a second process of this job that joined as {name}")
            return
        connection.setblocking(True)
        self._names_taken.add(name)
        missing.remove(name)
        _take_in(connection, name, missing, joined)

    def _challenge(
        self, pending: _PendingConnection, hello: handshake.Hello, missing: set[str]
    ) -> None:
        self._require_known(hello.peer, missing)
        pending.hello, pending.nonce = hello, handshake.new_nonce()
        own = handshake.proof(
            self._folder.secret, handshake.Side.LISTENER, self._folder.job, hello, pending.nonce
        )
        handshake.send_frame(pending.connection, handshake.Challenge(pending.nonce, own))

    def _require_proof(
        self, pending: _PendingConnection, hello: handshake.Hello, data: bytes, missing: set[str]
    ) -> None:
        given = msgspec.msgpack.decode(data, type=handshake.Proof).proof
        folder = self._folder
        is_right = handshake.proves(
            folder.secret, handshake.Side.CONNECTOR, folder.job, hello, pending.nonce, given
        )
        if not is_right:
            raise PermissionError
        self._require_known(hello.peer, missing)

    def _require_known(self, name: str, missing: set[str]) -> None:
        """Raises: PermissionError for an unexpected name"""
        if name not in missing | self._names_taken:
            raise PermissionError


def _take_in(
    connection: socket.socket, name: str, missing: set[str], joined: dict[str, Channel]
) -> None:
    """Add a peer, or a line of a peer on another machine that has joined before."""
    for channel in joined.values():
        if isinstance(channel, TcpChannel) and (line := connection_names(channel.peer).get(name)):
            channel.lines[line] = connection
            return
    if connection.family == socket.AF_UNIX:
        joined[name] = UnixChannel(connection, name)
    else:
        joined[name] = TcpChannel(connection, name)
        missing.update(connection_names(name))


def _unix_socket(name: str) -> socket.socket:
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listening.bind(f"\0{name}")
    listening.listen(BACKLOG)
    return listening


def _tcp_socket(address: str) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    return socket.create_server((address, 0), family=family, backlog=BACKLOG)


def _joining_awaited(names: list[str], seconds: float) -> str:
    shown = ", ".join(names[:SHOWN_NAMES])
    more = f" and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else ""
    return (
        f"Still waiting for {shown}{more} after {seconds:.0f} s: a streamer joins once its "
        "input_fn returns"
    )
