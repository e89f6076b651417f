"""Messages between the launcher and its fork server, over their socket."""

import socket

import msgspec

from csrun.base import framing
from csrun.context import Progress, SpawnWafer, TaskReport

_RECEIVE_BYTES = 1 << 16


class StartTask(msgspec.Struct, frozen=True, tag="start"):
    """Start a task: the command of a rank, or the wafer of a system for a run of rank 0.

    A wafer's command is csrun's own and is not sent (see `forking.with_command`).
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
        """Name of the task's report file."""
        return str(self.rank) if self.wafer is None else self.name


class SignalTasks(msgspec.Struct, frozen=True, tag="signal"):
    """Send a signal to the process groups of these tasks; ended ones are skipped."""

    names: tuple[str, ...]
    signum: int


class TaskEnded(msgspec.Struct, frozen=True, tag="ended"):
    """A task's process has exited. `exit_code` is negative for a signal; time of CLOCK_MONOTONIC.

    report: the task's report if it is sent with the message; otherwise it is in a file.
    is_lost: the task's node agent is lost, too, so nothing can be started there.
    """

    name: str
    exit_code: int
    time_s: float
    report: TaskReport | None = None
    is_lost: bool = False


class Stopped(msgspec.Struct, frozen=True, tag="stopped"):
    """Another process than the launcher sent the job a signal to end; time as of TaskEnded."""

    signum: int
    time_s: float


class TasksReady(msgspec.Struct, frozen=True, tag="ready"):
    """All planned tasks have arrived at the gate and now run the user's command."""

    tasks: int
    time_s: float


ToServer = StartTask | SignalTasks
ToLauncher = TaskEnded | TasksReady | Stopped | SpawnWafer | Progress


class MessageSocket:
    """Messages over a connected stream socket: msgpack in frames."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._received = bytearray()
        self._encoder = msgspec.msgpack.Encoder()

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._connection.fileno()

    def send(self, message: ToServer | ToLauncher) -> None:
        """Send one message.

        Raises: OSError if the other end is closed
        """
        self._connection.sendall(framing.encode(self._encoder.encode(message)))

    def receive(self) -> list[bytes] | None:
        """Return the bodies of all messages that are complete after one read; None at the end."""
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
