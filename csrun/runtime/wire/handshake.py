"""The words of the challenge on a connection: whole ones on a Unix socket, framed ones on TCP."""

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
    """Whose proof it is; keeps one side's proof from being sent back as the other's."""

    LISTENER = "listener"
    CONNECTOR = "connector"


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Connector → listener: who I claim to be, and my nonce."""

    peer: str
    nonce: bytes


class Challenge(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Listener → connector: my nonce, and my proof over both."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Connector → listener: my proof over both nonces."""

    proof: bytes


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="welcome"):
    """Listener → connector: you are in; without it a connector was turned away, and tries again."""


class NameTaken(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag="name_taken"):
    """Listener → connector, which holds the secret: whom you claim to be is in already."""


def new_nonce() -> bytes:
    """A nonce that was never used before."""
    return secrets.token_bytes(NONCE_BYTES)


def proof(secret: bytes, side: Side, job: str, hello: Hello, listener_nonce: bytes) -> bytes:
    """The proof of one side over job, role and both nonces.

    Fields are hashed with their lengths, so that no two different inputs give the same text.
    """
    text = b""
    for field in (side.encode(), job.encode(), hello.peer.encode(), hello.nonce, listener_nonce):
        text += len(field).to_bytes(4, "big") + field
    return hmac.new(secret, text, hashlib.sha256).digest()


def proves(secret: bytes, side: Side, job: str, hello: Hello, nonce: bytes, given: bytes) -> bool:
    """Return whether `given` is that side's proof, compared in constant time."""
    return hmac.compare_digest(proof(secret, side, job, hello, nonce), given)


HANDSHAKE_DEADLINE_S = 10.0  # 98 tasks on two cores answer late; a stranger may not stay longer
MAX_HANDSHAKE_BYTES = 1024


class Frames:
    """The words that come over a connection; never reads past the end of one."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._is_framed = connection.family != socket.AF_UNIX
        self._received = bytearray()

    def receive(self) -> bytes | None:
        """Read once; the word, when that was its end.

        Raises: OSError at the end of the connection, for a word that is too long, and when nothing
        has come
        """
        missing = framing.missing_bytes(self._received, MAX_HANDSHAKE_BYTES)
        # Of TCP not a byte more than the word: what follows is read by who takes the connection
        # over.
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
    """Send one word of the challenge."""
    data = msgspec.msgpack.encode(word)
    is_framed = connection.family != socket.AF_UNIX
    connection.send(framing.encode(data) if is_framed else data)


def prove(connection: socket.socket, secret: bytes, job: str, me: str) -> None:
    """The connector's part of the challenge.

    Raises: CsrunError when another task has come under the name; PermissionError when the listener
    does not hold the secret; OSError and MsgspecError for what else goes wrong
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
