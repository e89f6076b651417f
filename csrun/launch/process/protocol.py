"""Messages between the launcher and its fork server, over their socket."""

import socket

import msgspec

from csrun.base import framing
from csrun.context import Progress, SpawnWafer, TaskReport

_RECEIVE_BYTES = 1 << 16


class StartTask(msgspec.Struct, frozen=True, tag="start"):
    """Start a task: rank's own command, or the wafer of a system for a run of rank 0's.

    The command of a wafer is csrun's own: who starts it knows it (see `forking.with_command`).
    """

    rank: int
    argv: tuple[str, ...]
    wafer: str | None = None
    run: int = 0

    @property
    def name(self) -> str:
        """The task's name in messages and file names."""
        return f"rank-{self.rank:05d}" if self.wafer is None else f"wafer-{self.wafer}"

    @property
    def report_name(self) -> str:
        """The name of the task's report file."""
        return str(self.rank) if self.wafer is None else self.name


class SignalTasks(msgspec.Struct, frozen=True, tag="signal"):
    """Send a signal to the process groups of these tasks; the ended ones are passed over."""

    names: tuple[str, ...]
    signum: int


class TaskEnded(msgspec.Struct, frozen=True, tag="ended"):
    """A task's process is gone. `exit_code` is negative for a signal; time of CLOCK_MONOTONIC.

    `report` is the task's own word when it comes with the message; else it is in a file. `is_lost`:
    what started it is gone, too, and nothing can start there again.
    """

    name: str
    exit_code: int
    time_s: float
    report: TaskReport | None = None
    is_lost: bool = False


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """Somebody else than the launcher has sent the job a signal to end; time as of TaskEnded."""

    signum: int
    time_s: float


class TasksReady(msgspec.Struct, frozen=True, tag="ready"):
    """All planned tasks have reported in; from here on they run the user's command."""

    tasks: int
    time_s: float


ToServer = StartTask | SignalTasks
ToLauncher = TaskEnded | TasksReady | Stopped | SpawnWafer | Progress


class MessageSocket:
    """Whole messages over a connected stream socket: msgpack in frames."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()
        self._encoder = msgspec.msgpack.Encoder()

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._connection.fileno()

    def send(self, message: ToServer | ToLauncher) -> None:
        """Send one message.

        Raises: OSError when the other end is gone
        """
        self._connection.sendall(framing.encode(self._encoder.encode(message)))

    def receive(self) -> list[bytes] | None:
        """The bodies of all messages that are complete after one read; None at the end."""
        try:
            data = self._connection.recv(_RECEIVE_BYTES)
        except ConnectionError:
            return None
        if not data:
            return None
        self._received += data
        bodies, taken = framing.decode(self._received)
        del self._received[:taken]
        return bodies

    def close(self) -> None:
        self._connection.close()
