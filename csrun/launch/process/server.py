"""The launcher's end of the fork server: start, messages, termination."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic, sleep
from typing import Protocol

import msgspec

from csrun.base import open_files
from csrun.context import environment
from csrun.jobs.folder import JobFolder
from csrun.jobs.record import Outcome
from csrun.launch.first_cause import LOG_NAME, describe_server_loss
from csrun.launch.process.process_limit import naming_limit
from csrun.launch.process.protocol import MessageSocket, ToLauncher, ToServer
from csrun.system import FileLock

MODULE = "csrun.launch.process.forkserver"
END_S = 5.0  # for the server to kill and reap all tasks before the launcher does
_POLL_S = 0.002
_DECODER: "msgspec.msgpack.Decoder[ToLauncher]" = msgspec.msgpack.Decoder(ToLauncher)


class TaskServer(Protocol):
    """Process that starts, signals and reaps a job's tasks: a fork server, or srun on a cluster."""

    @property
    def name(self) -> str:
        """Name of the server in messages."""

    def fileno(self) -> int:
        """Descriptor that is readable when there is data to receive."""

    def send(self, message: ToServer) -> None:
        """Send an order.

        Raises: OSError if the server has ended
        """

    def receive(self) -> list[ToLauncher] | None:
        """Return messages of the tasks and the server; None once the server has ended."""

    def end(self, outcome: Outcome | None = None) -> int:
        """End the server and all of its tasks; return its exit code.

        outcome: outcome of the job, which Slurm stores; None if unknown.
        """

    def describe_loss(self, exit_code: int, folder: JobFolder) -> str:
        """Describe a server that ended before its tasks."""

    def describe_stop(self) -> str:
        """Return the reason why a scheduler signalled the tasks; empty if unknown."""


@dataclass(frozen=True)
class ServerProcess:
    """Running fork server."""

    process: "subprocess.Popen[bytes]"
    control: MessageSocket
    name: str = "the fork server"

    def fileno(self) -> int:
        """The descriptor of its socket."""
        return self.control.fileno()

    def send(self, message: ToServer) -> None:
        """Send an order.

        Raises: OSError if the server has ended
        """
        self.control.send(message)

    def receive(self) -> list[ToLauncher] | None:
        """Return new messages; None at the end."""
        bodies = self.control.receive()
        return None if bodies is None else [_DECODER.decode(body) for body in bodies]

    def describe_stop(self) -> str:
        """Nothing: only a cluster's scheduler signals tasks."""
        return ""

    def describe_loss(self, exit_code: int, folder: JobFolder) -> str:
        """Describe how the server ended."""
        return describe_server_loss(exit_code, folder.path)

    def end(self, outcome: Outcome | None = None) -> int:
        """Close the socket, upon which the server ends the job and itself; return its exit code."""
        self.control.close()
        deadline_s = monotonic() + END_S
        while self.process.poll() is None and monotonic() < deadline_s:
            sleep(_POLL_S)
        if self.process.poll() is None:
            self.process.kill()
        return self.process.wait()


def start_server(
    folder: JobFolder, modules: Iterable[str], locks: Iterable[FileLock]
) -> ServerProcess:
    """Start the fork server of a job; it imports `modules`, and holds `locks` while it lives."""
    ours, theirs = socket.socketpair()
    lock_fds = [held.fd for held in locks]
    # -P: a file in the user's folder must not replace one of our modules.
    command = [sys.executable, "-P", "-m", MODULE]
    command += [str(theirs.fileno()), str(folder.path), ",".join(modules), *map(str, lock_fds)]
    with theirs, folder.log(LOG_NAME).open("wb") as log, naming_limit():
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment.inherited() | environment.ONE_BLAS_THREAD,
            pass_fds=(theirs.fileno(), *lock_fds),
            # The launcher forwards Ctrl-C; the terminal would signal the whole group.
            process_group=0,
            cwd=os.getcwd(),
        )
    open_files.restore(process.pid)  # before it forks a task; read again later
    return ServerProcess(process, MessageSocket(ours))
