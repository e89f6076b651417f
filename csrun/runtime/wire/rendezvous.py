"""How the roles of a run find each other: the chief listens, its address lies in the job's folder.

A run is one call of the estimator; all tasks run the same script, so they count their runs alike.
The folder `runs/<n>` gets `endpoint` when the chief listens and `done.json` when the run is over,
so that a task that comes late learns the results without anyone to talk to; `failed.json` when the
chief's part of it raised, so that a script that catches the error does so in every task.
"""

import secrets
import select
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

import msgspec

from csrun.context import Host
from csrun.errors import CsrunError, PeerLost, UsageError
from csrun.files import write_whole
from csrun.runtime.messages import Results
from csrun.runtime.wire.auth import Challenge, Hello, Proof, Side, new_nonce, proof, proves
from csrun.runtime.wire.channel import Channel

HANDSHAKE_DEADLINE_S = 10.0  # 98 tasks on two cores answer late; a stranger may not stay longer
MAX_STRANGERS = 128  # connections that have not passed the challenge
FIRST_LOOK_S = 0.002  # a joiner looks for the endpoint this soon, then ever more rarely
RAREST_LOOK_S = 0.25
MAX_HANDSHAKE_BYTES = 1024
LOOK_FOR_ENDED_MS = 1000  # while no peer comes
CHIEF = "chief"
SAME_CALLS = "every task must make the same calls of the estimator"


class ChiefRefused(UsageError, PeerLost):  # noqa: N818  an event, not an error
    """The chief's UsageError, as the other tasks see it: never the first cause of a failure."""


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """failed.json: why the chief's part of a run ended."""

    message: str
    is_usage_error: bool


@dataclass(frozen=True)
class RunFolder:
    """Where one run of a job meets; `job` names the job in the challenge.

    `ended` has, by the name of a peer, the file that is there once its task has ended.
    `host` is the machine of this task, None when it is the chief's.
    """

    path: Path
    job: str
    secret: bytes
    ended: Mapping[str, Path] = field(default_factory=dict)
    host: Host | None = None

    @property
    def endpoint(self) -> Path:
        """The file with the chief's address."""
        return self.path / "endpoint"

    @property
    def done(self) -> Path:
        """The file with the run's results, once it is over."""
        return self.path / "done.json"

    @property
    def failed(self) -> Path:
        """The file with the `Failure` of a run that the chief has given up."""
        return self.path / "failed.json"

    def has_ended(self, peer: str) -> bool:
        """Whether the task of a peer has ended, so that it will not come any more."""
        return peer in self.ended and self.ended[peer].exists()


@dataclass
class _Stranger:
    """A connection that has not passed the challenge yet."""

    connection: socket.socket
    deadline: float
    hello: Hello | None = None
    nonce: bytes = b""


class Listener:
    """The chief's door: takes in exactly the peers that it was told to expect, once each."""

    def __init__(self, folder: RunFolder) -> None:
        folder.path.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # An abstract address: no path to be too long, nothing to remove.
        name = f"csrun-{secrets.token_hex(12)}"
        self._socket.bind(f"\0{name}")
        self._socket.listen(256)
        self._socket.setblocking(False)
        self._strangers: dict[int, _Stranger] = {}
        write_whole(folder.endpoint, name.encode(), durable=False)

    def accept(self, expected: set[str]) -> dict[str, Channel]:
        """Wait until all expected peers have joined.

        Raises: CsrunError when one of them has ended instead.
        """
        joined: dict[str, Channel] = {}
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        while len(joined) < len(expected):
            events = poll.poll(LOOK_FOR_ENDED_MS)
            if not events:
                self._require_living(expected - joined.keys())
            for descriptor, _ in events:
                if descriptor == self._socket.fileno():
                    self._let_in(poll)
                    continue
                channel = self._advance(self._strangers[descriptor], expected - joined.keys())
                if channel is not None:
                    joined[channel.peer] = channel
                if descriptor not in self._strangers:
                    poll.unregister(descriptor)
            self._drop_late(poll)
        return joined

    def close(self) -> None:
        """Close the door; strangers are sent away."""
        for stranger in self._strangers.values():
            stranger.connection.close()
        self._strangers.clear()
        self._socket.close()

    def _require_living(self, missing: set[str]) -> None:
        for peer in sorted(missing):
            if self._folder.has_ended(peer):
                raise CsrunError(f"{peer} has ended without taking part in this run: {SAME_CALLS}")

    def _let_in(self, poll: select.poll) -> None:
        try:
            connection, _ = self._socket.accept()
        except BlockingIOError:
            return
        if len(self._strangers) >= MAX_STRANGERS:
            connection.close()
            return
        connection.setblocking(False)
        stranger = _Stranger(connection, monotonic() + HANDSHAKE_DEADLINE_S)
        self._strangers[connection.fileno()] = stranger
        poll.register(connection, select.POLLIN)

    def _drop_late(self, poll: select.poll) -> None:
        now = monotonic()
        for descriptor in [d for d, s in self._strangers.items() if s.deadline < now]:
            poll.unregister(descriptor)
            self._strangers.pop(descriptor).connection.close()

    def _advance(self, stranger: _Stranger, wanted: set[str]) -> Channel | None:
        """One message of the handshake; a wrong one ends the connection without a word."""
        descriptor = stranger.connection.fileno()
        try:
            data = stranger.connection.recv(MAX_HANDSHAKE_BYTES)
            if stranger.hello is None:
                self._challenge(stranger, msgspec.msgpack.decode(data, type=Hello), wanted)
                return None
            answer = msgspec.msgpack.decode(data, type=Proof)
            if not proves(
                self._folder.secret,
                Side.CONNECTOR,
                self._folder.job,
                stranger.hello,
                stranger.nonce,
                answer.proof,
            ):
                raise PermissionError
        except (OSError, msgspec.MsgspecError):
            self._strangers.pop(descriptor).connection.close()
            return None
        self._strangers.pop(descriptor)
        stranger.connection.setblocking(True)
        return Channel(stranger.connection, stranger.hello.peer)

    def _challenge(self, stranger: _Stranger, hello: Hello, wanted: set[str]) -> None:
        if hello.peer not in wanted:
            raise PermissionError
        stranger.hello, stranger.nonce = hello, new_nonce()
        own = proof(self._folder.secret, Side.LISTENER, self._folder.job, hello, stranger.nonce)
        stranger.connection.send(msgspec.msgpack.encode(Challenge(stranger.nonce, own)))


def announce_done(folder: RunFolder, results: Results) -> None:
    """Leave the run's results for tasks that come late."""
    folder.path.mkdir(parents=True, exist_ok=True)
    write_whole(folder.done, msgspec.json.encode(results), durable=False)


def announce_failed(folder: RunFolder, error: Exception) -> None:
    """Leave word that the run has failed with `error`, so that nobody waits for it."""
    message = str(error) if isinstance(error, CsrunError) else f"{type(error).__name__}: {error}"
    with suppress(OSError):  # the error itself is what the user must see
        folder.path.mkdir(parents=True, exist_ok=True)
        failure = Failure(message, isinstance(error, UsageError))
        write_whole(folder.failed, msgspec.json.encode(failure), durable=False)


def join(folder: RunFolder, me: str) -> Channel | Results:
    """Connect to the run's chief as the peer `me`, or get the results of a run that is over.

    Raises: PeerLost when the chief went away, has given the run up, or is no chief of this job (a
    ChiefRefused where it gave up with a UsageError); CsrunError when it has ended before this run.
    """
    pause = FIRST_LOOK_S
    while True:
        is_too_late = folder.has_ended(CHIEF)  # asked first: what it left is there by then
        if folder.done.exists():
            return msgspec.json.decode(folder.done.read_bytes(), type=Results)
        _raise_failure(folder)
        if folder.endpoint.exists():
            return _connect(folder, me)
        if is_too_late:
            raise CsrunError(f"{me}: the chief has ended without this run: {SAME_CALLS}")
        sleep(pause)
        pause = min(2 * pause, RAREST_LOOK_S)


def _raise_failure(folder: RunFolder) -> None:
    """Raise what the chief has left, if it has given the run up."""
    if folder.failed.exists():
        failure = msgspec.json.decode(folder.failed.read_bytes(), type=Failure)
        raise (ChiefRefused if failure.is_usage_error else PeerLost)(failure.message)


def _connect(folder: RunFolder, me: str) -> Channel | Results:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.settimeout(HANDSHAKE_DEADLINE_S)
        connection.connect("\0" + folder.endpoint.read_text())
        _prove(connection, folder, me)
    except (OSError, msgspec.MsgspecError) as error:
        connection.close()
        if folder.done.exists():
            return msgspec.json.decode(folder.done.read_bytes(), type=Results)
        _raise_failure(folder)
        raise PeerLost(f"{me}: lost the connection to the chief while joining: {error}") from error
    connection.settimeout(None)
    return Channel(connection, CHIEF)


def _prove(connection: socket.socket, folder: RunFolder, me: str) -> None:
    hello = Hello(me, new_nonce())
    connection.send(msgspec.msgpack.encode(hello))
    challenge = msgspec.msgpack.decode(connection.recv(MAX_HANDSHAKE_BYTES), type=Challenge)
    if not proves(
        folder.secret, Side.LISTENER, folder.job, hello, challenge.nonce, challenge.proof
    ):
        raise PermissionError("the listener does not hold the job's secret")
    own = proof(folder.secret, Side.CONNECTOR, folder.job, hello, challenge.nonce)
    connection.send(msgspec.msgpack.encode(Proof(own)))
