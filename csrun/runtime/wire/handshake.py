"""Mutual authentication of a connection: messages of a challenge, on Unix sockets and TCP."""

import hashlib
import hmac
import secrets
import socket
from enum import StrEnum

import msgspec

from csrun.base import framing
from csrun.base.errors import CsrunError

NONCE_BYTES = 32


class Side(StrEnum):
    """Side of a proof; prevents that one side's proof is sent back as the other's."""

    LISTENER = "listener"
    CONNECTOR = "connector"


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Connector → listener: claimed identity, and the connector's nonce."""

    peer: str
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Listener → connector: the listener's nonce, and its proof over both."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Connector → listener: the connector's proof over both nonces."""

    proof: bytes


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="welcome"):
    """Listener → connector: accepted; without this message the connector was rejected, and
    retries.
    """


class NameTaken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="name_taken"):
    """Listener → connector with a valid proof: another connection uses the claimed name."""


def new_nonce() -> bytes:
    """Return a random nonce."""
    return secrets.token_bytes(NONCE_BYTES)


def proof(secret: bytes, side: Side, job: str, hello: Hello, listener_nonce: bytes) -> bytes:
    """Return the proof of one side over job, role and both nonces.

    Fields are hashed with their lengths, so that no two different inputs hash the same text.
    """
    text = b""
    for field in (side.encode(), job.encode(), hello.peer.encode(), hello.nonce, listener_nonce):
        text += len(field).to_bytes(4, "big") + field
    return hmac.new(secret, text, hashlib.sha256).digest()


def proves(secret: bytes, side: Side, job: str, hello: Hello, nonce: bytes, given: bytes) -> bool:
    """Return whether `given` is that side's proof, compared in constant time."""
    return hmac.compare_digest(proof(secret, side, job, hello, nonce), given)


# 98 tasks on two cores answer late; an unauthenticated connection may not stay longer
HANDSHAKE_DEADLINE_S = 10.0
MAX_HANDSHAKE_BYTES = 1024


class Frames:
    """Messages of the challenge on a connection; never reads beyond the end of a message."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._is_framed = connection.family != socket.AF_UNIX
        self._received = bytearray()

    def receive(self) -> bytes | None:
        """Read once; return the message if complete.

        Raises: OSError at the end of the connection, for a message that is too long, and if no data
        is available
        """
        missing = framing.missing_bytes(self._received, MAX_HANDSHAKE_BYTES)
        # On TCP not a byte more than the message: what follows is read by the new owner of the
        # connection.
        most = missing if self._is_framed else MAX_HANDSHAKE_BYTES
        data = self._connection.recv(most)
        if not data:
            raise ConnectionResetError("the connection was closed")
        if not self._is_framed:
            return data
        self._received += data
        if framing.missing_bytes(self._received, MAX_HANDSHAKE_BYTES):
            return None
        word = bytes(self._received[framing.HEAD.size :])
        self._received.clear()
        return word

    def receive_whole(self) -> bytes:
        while (word := self.receive()) is None:
            pass
        return word


def send_frame(
    connection: socket.socket, word: Hello | Challenge | Proof | Welcome | NameTaken
) -> None:
    """Send one message of the challenge."""
    data = msgspec.msgpack.encode(word)
    is_framed = connection.family != socket.AF_UNIX
    connection.send(framing.encode(data) if is_framed else data)


def prove(connection: socket.socket, secret: bytes, job: str, me: str) -> None:
    """Run the connector's part of the challenge.

    Raises: CsrunError if another task uses the name; PermissionError if the listener does not have
    the secret; OSError and MsgspecError for other failures
    """
    hello = Hello(me, new_nonce())
    send_frame(connection, hello)
    frames = Frames(connection)
    challenge = msgspec.msgpack.decode(frames.receive_whole(), type=Challenge)
    if not proves(secret, Side.LISTENER, job, hello, challenge.nonce, challenge.proof):
        raise PermissionError("the listener does not hold the job's secret")
    own = proof(secret, Side.CONNECTOR, job, hello, challenge.nonce)
    send_frame(connection, Proof(own))
    answer = msgspec.msgpack.decode(frames.receive_whole(), type=Welcome | NameTaken)
    if isinstance(answer, NameTaken):
        raise CsrunError(
            f"{me}: another process already joined this run under that name: call the estimator "
            "in one process per task"
        )
