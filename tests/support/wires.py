"""Pairs of connected channels, one of each kind."""

import socket

from csrun.runtime.wire.channel import channel_pair
from csrun.runtime.wire.tcp import TcpChannel, tune


def tcp_channel_pair(first: str, second: str) -> tuple[TcpChannel, TcpChannel]:
    """As `channel_pair`, over loopback, each with its bulk."""
    left, right = (TcpChannel(*end) for end in zip(_tcp_pair(), (first, second), strict=True))
    left.bulk, right.bulk = _tcp_pair()
    return left, right


def _tcp_pair() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as door:
        left = socket.create_connection(door.getsockname())
        right, _ = door.accept()
    tune(left)
    tune(right)
    return left, right


PAIRS = {"unix": channel_pair, "tcp": tcp_channel_pair}
