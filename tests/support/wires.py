"""Pairs of connected channels of each kind, and a connection that alters data."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from csrun.runtime.wire.channel import channel_pair
from csrun.runtime.wire.tcp import ConnectionPurpose, TcpChannel, tune


def tcp_channel_pair(first: str, second: str) -> tuple[TcpChannel, TcpChannel]:
    """Pair as `channel_pair`, over loopback, each with all connections."""
    left, right = (TcpChannel(*end) for end in zip(_tcp_pair(), (first, second), strict=True))
    for line in ConnectionPurpose:
        left.lines[line], right.lines[line] = _tcp_pair()
    return left, right


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        left = socket.create_connection(door.getsockname())
        right, _ = door.accept()
    tune(left)
    tune(right)
    return left, right


@contextmanager
def altering_pair(byte: int) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Pair of ends: a bit of this byte from the second end arrives altered at the first."""
    first, near = socket.socketpair()
    far, second = socket.socketpair()
    threads = [
        threading.Thread(target=_pass_on, args=args, daemon=True)
        for args in ((near, far, None), (far, near, byte))
    ]
    for thread in threads:
        thread.start()
    with first, second, near, far:
        yield first, second
        for end in (first, second, near, far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()


def _pass_on(source: socket.socket, sink: socket.socket, byte: int | None) -> None:
    passed = 0
    with suppress(OSError):
        while data := bytearray(source.recv(1 << 16)):
            if byte is not None and passed <= byte < passed + len(data):
                data[byte - passed] ^= 0x10
            passed += len(data)
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_RDWR)


PAIRS = {"unix": channel_pair, "tcp": tcp_channel_pair}
