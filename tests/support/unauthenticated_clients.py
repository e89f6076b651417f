"""Peers without a job's secret: they connect to all of its listeners, and misbehave."""

import random
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from csrun.base import stored
from csrun.runtime.wire.handshake import Challenge, Hello, Proof
from csrun.runtime.wire.rendezvous import Endpoint

HELD = 300  # connections that are kept open, more than a listener keeps of strangers
STALL_S = 2.0
RANDOM = random.Random(7)


def send_nothing(_: socket.socket) -> None:
    """Connect and send nothing."""


def send_garbage(connection: socket.socket) -> None:
    connection.send(RANDOM.randbytes(200))


def send_half_a_message(connection: socket.socket) -> None:
    connection.send(b"\x00\x00\x00\x60" + bytes(40))


def send_an_endless_length(connection: socket.socket) -> None:
    connection.send(b"\xff\xff\xff\xff" + bytes(1000))


def send_another_protocol(connection: socket.socket) -> None:
    connection.send(b"GET / HTTP/1.1\r\nHost: chief\r\n\r\n")


def prove_without_the_secret(connection: socket.socket) -> None:
    """Send a wrong answer to the challenge."""
    hello = msgspec.msgpack.encode(Hello("streamer 3", RANDOM.randbytes(32)))
    framed = connection.family != socket.AF_UNIX
    connection.send(len(hello).to_bytes(4, "big") + hello if framed else hello)
    data = connection.recv(1024)
    if data:
        challenge = msgspec.msgpack.decode(data[4:] if framed else data, type=Challenge)
        answer = msgspec.msgpack.encode(Proof(challenge.proof))
        connection.send(len(answer).to_bytes(4, "big") + answer if framed else answer)


MANNERS: list[Callable[[socket.socket], None]] = [
    send_nothing,
    send_garbage,
    send_half_a_message,
    send_an_endless_length,
    send_another_protocol,
    prove_without_the_secret,
]


class UnauthenticatedClients:
    """Flood of a run's listeners at a bounded rate.

    `accepted` counts accepted connections, `refused` refused ones.
    """

    def __init__(self, run: Path, per_s: float) -> None:
        self._endpoint = stored.read(run / "endpoint", Endpoint, "the address")
        self._link = run.parent.parent / "link.sock"
        self._held: deque[socket.socket] = deque()
        self._pause_s = 1 / per_s
        self.accepted = 0
        self.refused = 0

    def open_connections(self, count: int) -> None:
        """This many connections one after the other; the newest stay open."""
        for number in range(count):
            due_s = time.monotonic() + self._pause_s
            with suppress(TimeoutError, ConnectionResetError, BrokenPipeError):
                self._connect_and_send(number)
            while len(self._held) > HELD:
                self._held.popleft().close()
            time.sleep(max(0.0, due_s - time.monotonic()))

    def close(self) -> None:
        """Close what is open."""
        while self._held:
            self._held.popleft().close()

    def _connect_and_send(self, number: int) -> None:
        kind = number // len(MANNERS) % 3
        try:
            connection = (self._unix, self._tcp, self._datagram)[kind]()
        except (ConnectionRefusedError, FileNotFoundError, BlockingIOError):
            self.refused += 1
            return
        self._held.append(connection)
        self.accepted += 1
        MANNERS[number % len(MANNERS)](connection)

    def _unix(self) -> socket.socket:
        return _connect(socket.SOCK_SEQPACKET, f"\0{self._endpoint.unix}")

    def _tcp(self) -> socket.socket:
        assert self._endpoint.host is not None
        address = (self._endpoint.host.address, self._endpoint.port)
        return socket.create_connection(address, STALL_S)

    def _datagram(self) -> socket.socket:
        """To the launcher's socket, which any task may write to, and then to the chief's port."""
        with suppress(TimeoutError), _connect(socket.SOCK_DGRAM, str(self._link)) as link:
            link.send(RANDOM.randbytes(100))
        return self._tcp()


def _connect(kind: int, address: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, kind)
    connection.settimeout(STALL_S)
    try:
        connection.connect(address)
    except OSError:
        connection.close()
        raise
    return connection
