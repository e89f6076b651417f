"""Who may join a job: an HMAC challenge both ways before a byte of payload is read.

Both ends prove that they hold the job's secret, over role, job and both nonces. Peers without the
secret are kept out; a network that can alter the packets of an established connection is not
defended against.

Source: ISO/IEC 9798-4, mutual authentication by a keyed hash in three passes
"""

import hashlib
import hmac
import secrets
from enum import StrEnum

import msgspec

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


class Welcome(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Listener → connector: you are in; without it a connector was crowded out, and tries again."""


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
    """Whether `given` is that side's proof, compared in constant time."""
    return hmac.compare_digest(proof(secret, side, job, hello, nonce), given)
