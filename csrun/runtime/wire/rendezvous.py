"""Rendezvous of a run's roles: the chief listens, and its address is in the job folder.

A run is one call of the estimator; all tasks run the same script, so they number their runs
equally. The folder `runs/<n>` gets `endpoint` when the chief listens, and `done.json` when the run
is over, so that a late task gets the results without a connection. It gets `failed.json` when the
chief's part raised an exception, so that a script that catches it does so in every task.
"""

import errno
import logging
import os
import secrets
import socket
import struct
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from time import monotonic, sleep

import msgspec

from csrun.base import stored
from csrun.base.errors import CsrunError, PeerLost, UsageError
from csrun.base.files import make_private
from csrun.base.stored import UNREADABLE
from csrun.context import Host, Role
from csrun.context.deferred_termination import DeferredTermination
from csrun.context.job import peer_name
from csrun.context.task import report_before_closing
from csrun.runtime.wire.channel import Channel, UnixChannel
from csrun.runtime.wire.handshake import HANDSHAKE_DEADLINE_S, prove
from csrun.runtime.wire.messages import Results
from csrun.runtime.wire.tcp import ConnectionPurpose, TcpChannel, tune

log = logging.getLogger("csrun")


class Endpoint(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Addresses of the chief. `unix` is an abstract address, without a path that could be too long
    or left behind.

    host, port: None if all tasks share one machine.
    """

    unix: str
    host: Host | None
    port: int | None

    def connect(self, host: Host | None, timeout_s: float) -> socket.socket:
        """Connect from a task on `host`, by TCP to another machine.

        Raises: OSError
        """
        if host is None or self.host is None or host.name == self.host.name:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            connection.settimeout(timeout_s)
            try:
                connection.connect(f"\0{self.unix}")
                require_own_account(connection)
            except OSError:
                connection.close()
                raise
            return connection
        return socket.create_connection((self.host.address, self.port or 0), timeout_s)


def new_unix_name() -> str:
    """Return an unused abstract address."""
    return f"csrun-{secrets.token_hex(12)}"


def require_own_account(connection: socket.socket) -> None:
    """Check that the process at the other end of a Unix socket belongs to this account.

    An abstract address has no file mode that would exclude other accounts.

    Raises: PermissionError
    """
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(data)
    if uid != os.getuid():
        raise PermissionError(errno.EACCES, f"the peer belongs to another account, uid {uid}")


def connection_names(peer: str) -> dict[str, ConnectionPurpose]:
    """Return the lines of a peer on another machine, by the names under which they join."""
    has_store = peer.split()[0] == MEMORYX and "/" not in peer  # and is not a SwarmX task's lane
    lines = tuple(ConnectionPurpose) if has_store else (ConnectionPurpose.BULK,)
    return {f"{peer}/{line}": line for line in lines}


_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid; unix(7)
FIRST_LOOK_S = 0.002  # seconds between polls of the endpoint, increasing
RAREST_LOOK_S = 0.25
QUEUE_S = 60.0  # a thousand tasks on two cores connect at once, more than the chief's queue holds
MOST_TURNED_AWAY = 6  # times
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.02, 1.0
CHIEF = "chief"
MEMORYX = peer_name(Role.MEMORYX)  # the first task, and usually the only one
_RUN_AGAIN = "start the job again"
SAME_CALLS = "every task must make the same calls of the estimator"
RUN_FAILED = "run failed"  # among the results of a run that the chief has abandoned


class ChiefRefused(UsageError, PeerLost):  # noqa: N818  an event, not an error
    """The chief's UsageError, raised in the other tasks; never the first cause of a failure."""


class RunDone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """done.json: results of a run, as text, since JSON cannot represent NaN."""

    results: dict[str, str]


class Failure(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """failed.json: reason why the chief's part of a run ended."""

    message: str
    is_usage_error: bool


@dataclass(frozen=True)
class RunFolder:
    """Folder in which the tasks of one run meet; `job` names the job in the challenge.

    ended: by the name of a peer, the file that exists once its task has ended.
    host: machine of this task; None if it is the chief's.
    """

    path: Path
    job: str
    secret: bytes
    ended: Mapping[str, Path] = field(default_factory=dict)
    host: Host | None = None

    @property
    def endpoint(self) -> Path:
        """The file with the chief's `Endpoint`."""
        return self.path / "endpoint"

    @property
    def done(self) -> Path:
        """The file with the run's results, once it is over."""
        return self.path / "done.json"

    @property
    def failed(self) -> Path:
        """The file with the `Failure` of a run that the chief has abandoned."""
        return self.path / "failed.json"

    def has_ended(self, peer: str) -> bool:
        """Return whether the task of a peer has ended, so that it can no longer join."""
        return peer in self.ended and self.ended[peer].exists()


def announce_done(folder: RunFolder, results: Results) -> None:
    """Write the run's results for late tasks.

    A failure to write is only logged, because the work is done.
    """
    # str of a float has all digits, so that every task gets the same bits
    exact = {name: str(value) for name, value in results.items()}
    try:
        make_private(folder.path)
        stored.write(folder.done, RunDone(exact), durable=False)
    except (OSError, UsageError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        log.warning(
            f"{folder.done}: cannot be written: {why}; the run succeeded, but late tasks will "
            "not see its results"
        )


def announce_failed(folder: RunFolder, error: Exception) -> None:
    """Record that the run has failed with `error`, so that no task waits for it."""
    message = str(error) if isinstance(error, CsrunError) else f"{type(error).__name__}: {error}"
    with suppress(OSError):  # the user must see the error itself
        make_private(folder.path)
        failure = Failure(message, isinstance(error, UsageError))
        stored.write(folder.failed, failure, durable=False)


def join(folder: RunFolder, me: str) -> Channel | Results:
    """Connect to the run's chief as the peer `me`, or return the results of a run that is over.

    Raises: PeerLost if the chief was lost, has abandoned the run, has ended before it, or is not a
    chief of this job (a ChiefRefused if it ended with a UsageError)
    """
    pause = FIRST_LOOK_S
    while True:
        is_too_late = folder.has_ended(CHIEF)  # checked first: its files exist by then
        if (results := _results(folder)) is not None:
            return results
        raise_failure(folder)
        if os.path.lexists(folder.endpoint):
            return _connect(folder, me)
        if is_too_late:
            raise PeerLost(f"{me}: the chief ended without starting this run: {SAME_CALLS}", CHIEF)
        sleep(pause)
        # Increasing: a thousand tasks poll one folder, which may be on a network.
        pause = min(2 * pause, RAREST_LOOK_S)


def _results(folder: RunFolder) -> Results | None:
    """Return the results of a run that is over."""
    try:
        done = stored.read(folder.done, RunDone, "the run's results", _RUN_AGAIN)
    except FileNotFoundError:
        return None
    try:
        return {name: float(value) for name, value in done.results.items()}
    except ValueError as error:
        message = f"{folder.done}: the run's results are damaged: {error}; {_RUN_AGAIN}"
        raise stored.DamagedError(message) from error


def raise_failure(folder: RunFolder) -> None:
    """Raise PeerLost or ChiefRefused if the chief has abandoned the run."""
    with suppress(FileNotFoundError):
        failure = stored.read(folder.failed, Failure, "the chief's failure record", _RUN_AGAIN)
        raise (ChiefRefused if failure.is_usage_error else PeerLost)(failure.message)


def _connect(folder: RunFolder, me: str) -> Channel | Results:
    try:
        connection = _proven(folder, me)
        if connection.family == socket.AF_UNIX:
            return UnixChannel(connection, CHIEF)
        channel = TcpChannel(connection, CHIEF)
        try:
            for name, line in connection_names(me).items():
                channel.lines[line] = _proven(folder, name)
        except BaseException:
            channel.close()
            raise
    except (OSError, *UNREADABLE) as error:
        if (results := _results(folder)) is not None:
            return results
        raise_failure(folder)
        message = f"{me}: lost the connection to the chief while joining: {error}"
        raise PeerLost(message, CHIEF) from error
    return channel


def _proven(folder: RunFolder, name: str) -> socket.socket:
    """Return an authenticated connection; one rejected under load is retried.

    Pauses are random, so that tasks that came at the same time retry at different times.
    """
    endpoint = stored.read(folder.endpoint, Endpoint, "the chief's address", _RUN_AGAIN)
    deadline_s, pause_s = monotonic() + QUEUE_S, FIRST_PAUSE_S
    # Seeded by the name: tasks that came at once have different pauses, equal in each run.
    draws, turned_away = Random(name), 0
    while True:
        try:
            return _prove(endpoint, folder, name)
        except BlockingIOError:  # the chief's queue is full
            if monotonic() > deadline_s:
                raise
        # unauthenticated connections, or the chief refuses
        except (ConnectionResetError, BrokenPipeError):
            turned_away += 1
            if turned_away > MOST_TURNED_AWAY:
                raise
        sleep(pause_s * draws.uniform(0.5, 1))
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S)


def _prove(endpoint: Endpoint, folder: RunFolder, name: str) -> socket.socket:
    connection = endpoint.connect(folder.host, HANDSHAKE_DEADLINE_S)
    try:
        if connection.family != socket.AF_UNIX:
            tune(connection)
        prove(connection, folder.secret, folder.job, name)
        connection.settimeout(None)
    except BaseException:
        connection.close()
        raise
    return connection


def connection_name(peer: str, memoryx: str) -> str:
    """Return the name under which a neighbour of a SwarmX task joins it, for one MemoryX task's
    data.
    """
    return f"{peer}/{memoryx}"


def swarmx_folder(folder: RunFolder, task: str) -> RunFolder:
    """Return the folder in which the neighbours of a SwarmX task of a run connect to it."""
    return replace(folder, path=folder.path / task)


def join_swarmx(folder: RunFolder, task: str, me: str, memoryx: str) -> TcpChannel:
    """Connect to a SwarmX task of a run; the bulk connection carries one MemoryX task's data.

    Raises: PeerLost as `join`
    """
    joined = join(swarmx_folder(folder, task), connection_name(me, memoryx))
    if not isinstance(joined, TcpChannel):
        raise RuntimeError(f"{task} must not share a machine with {me}")
    return joined


def memoryx_names(servers: int) -> tuple[str, ...]:
    """Return the names of the MemoryX tasks, which have the ranks from 1 on."""
    return tuple(peer_name(Role.MEMORYX, rank) for rank in range(1, servers + 1))


def swarmx_name(rank: int) -> str:
    """Return the name of the SwarmX task of a rank."""
    return peer_name(Role.SWARMX, rank)


def streamer_name(rank: int) -> str:
    """Return the name of the streamer of a rank."""
    return peer_name(Role.STREAMER, rank)


def wafer_name(system: str) -> str:
    """Return the name of the wafer of a CS system."""
    return peer_name(Role.WAFER, system=system)


def join_run(folder: RunFolder, name: str, serve: Callable[[Channel], Results]) -> Results:
    """Join the run as `name`, serve until the chief sends the end, and return the run's results.

    A signal to end is deferred until the chief has sent the end, or is lost.

    Raises: PeerLost if the chief is lost; the exceptions of `serve`
    """
    joined = join(folder, name)
    if not isinstance(joined, Channel):
        return joined
    with closing(joined), DeferredTermination(is_over=joined.has_ended):
        try:
            return serve(joined)
        except Exception as error:
            # Before the connection closes: otherwise the chief may report its lost peer first, as
            # the cause.
            report_before_closing(error)
            raise


def await_results(folder: RunFolder, name: str) -> Results:
    """Return the results of a run in which the chief needs no peers.

    Raises: PeerLost if the chief is lost or abandons the run; CsrunError if it runs something else
    """
    joined = join(folder, name)
    if isinstance(joined, Channel):
        joined.close()
        raise CsrunError(f"{name}: the chief is in another run: {SAME_CALLS}")
    return joined
