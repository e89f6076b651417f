"""The launcher's end of the fork server: starting it, talking to it, and being rid of it."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from time import monotonic, sleep

from csrun.context import environment
from csrun.launch.folder import JobFolder
from csrun.launch.protocol import MessageSocket
from csrun.system import FileLock

MODULE = "csrun.launch.forkserver"
LOG_NAME = "forkserver"
END_S = 5.0  # for the server to kill and reap all, before we do it
_POLL_S = 0.002
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


@dataclass(frozen=True)
class ServerProcess:
    """A running fork server."""

    process: "subprocess.Popen[bytes]"
    control: MessageSocket

    def end(self) -> int:
        """Close the socket, by which the server ends itself and all of the job; its exit code."""
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
    command = [sys.executable, "-P", "-m", MODULE]
    command += [str(theirs.fileno()), str(folder.path), ",".join(modules), *map(str, lock_fds)]
    with theirs, folder.log(LOG_NAME).open("wb") as log:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment.inherited() | _ONE_THREAD,
            pass_fds=(theirs.fileno(), *lock_fds),
            process_group=0,
            cwd=os.getcwd(),
        )
    return ServerProcess(process, MessageSocket(ours))
