"""The fork server: one process with one thread that forks a job's tasks, reaps them, and ends all.

The launcher starts it as `python -P -m csrun.launch.process.forkserver CONTROL_FD JOB_DIR MODULES
[LOCK_FD...]`. It imports MODULES (names with commas between them) before anything else, so that a
task starts in the time of a fork and shares their memory. When the launcher's socket closes, or on
SIGTERM, it kills whatever descends from it and is gone.
"""

import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Iterable
from pathlib import Path
from time import monotonic

import msgspec
import numpy as np  # noqa: F401  imported once here, for all tasks

from csrun.context import JobFile
from csrun.context.link import LINK_SOCKET
from csrun.jobs.folder import JobFolder
from csrun.launch.process.forking import (
    DATAGRAM_BYTES,
    Gate,
    bind_link,
    fork_task,
    is_permitted,
    receive,
    send_signal,
    signal_pipe,
    with_command,
)
from csrun.launch.process.process_tree import become_subreaper, kill_descendants, reap, set_name
from csrun.launch.process.protocol import MessageSocket, StartTask, TaskEnded, TasksReady, ToServer
from csrun.launch.process.task_process import become_task, blas
from csrun.system import FileLock

_HANDLED = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


class ForkServer:
    """The server's loop and the tasks that live."""

    def __init__(self, control: MessageSocket, folder: JobFolder) -> None:
        self._control = control
        self._folder = folder
        self._job = JobFile.read(folder.path)
        self._pid = os.getpid()
        self._link = bind_link(folder.path, LINK_SOCKET)
        self._gate = Gate(len(self._job.tasks))
        self._signals, self._wakeup = signal_pipe(_HANDLED)
        self._selector = selectors.DefaultSelector()
        self._tasks: dict[int, StartTask] = {}
        self._has_ended = False
        self._from_launcher = msgspec.msgpack.Decoder(ToServer)

    def serve(self) -> int | None:
        """Work until the launcher is gone (None) or a signal asks to end (its number)."""
        for source in (self._control, self._link, self._gate, self._signals):
            self._selector.register(source, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._link:
                    self._forward()
                elif key.fileobj is self._gate:
                    self._let_in()
                elif key.fileobj is self._control:
                    if not self._obey():
                        return None
                elif signum := self._ending_signal():
                    return signum
                else:
                    self._reap()

    def _obey(self) -> bool:
        bodies = self._control.receive()
        for body in bodies or ():
            message = self._from_launcher.decode(body)
            if isinstance(message, StartTask):
                self._start(message)
            else:
                send_signal(self._tasks, message)
        return bodies is not None

    def _start(self, ordered: StartTask) -> None:
        start = with_command(ordered, self._job, self._folder.path)
        if self._has_ended and not self._tasks:
            kill_descendants()  # what the tasks have left behind that now start again
            self._has_ended = False
        owned = (self._control, self._link, self._signals, self._wakeup, self._selector)
        pid = fork_task(
            _HANDLED,
            owned,
            lambda: become_task(start, self._job, self._folder, self._pid, self._gate),
        )
        self._tasks[pid] = start

    def _forward(self) -> None:
        message = receive(self._link)
        if message is not None and is_permitted(message, self._job):
            self._control.send(message)

    def _let_in(self) -> None:
        if self._gate.take_arrivals():
            self._control.send(TasksReady(len(self._job.tasks), monotonic()))

    def _ending_signal(self) -> int | None:
        received = self._signals.recv(DATAGRAM_BYTES)
        return next((n for n in received if n != signal.SIGCHLD), None)

    def _reap(self) -> None:
        now = monotonic()
        for pid, exit_code in reap().items():
            if task := self._tasks.pop(pid, None):  # else an orphan that we adopted
                self._has_ended = True
                if exit_code == 0 and task.wafer is None:
                    self._folder.mark_ended(task.rank)
                self._control.send(TaskEnded(task.name, exit_code, now))


def _preload(modules: Iterable[str]) -> None:
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # a task that imports it fails in its own name, for the user to read
            traceback.print_exc()


def main(argv: list[str]) -> None:
    """Serve one job; see the module's text for the arguments."""
    control_fd, job_dir, modules, *lock_fds = argv
    set_name("forkserver")
    become_subreaper()
    _preload(filter(None, modules.split(",")))
    locks = [FileLock.adopt(Path(), int(fd)) for fd in lock_fds]
    os.set_inheritable(int(control_fd), False)
    server = ForkServer(
        MessageSocket(socket.socket(fileno=int(control_fd))), JobFolder(Path(job_dir))
    )
    blas()
    gc.freeze()  # keeps the tasks' garbage collectors from copying the server's pages
    try:
        signum = server.serve()
    except OSError as error:
        print(f"the launcher is gone: {error}", file=sys.stderr)
        signum = None
    kill_descendants()
    for held in locks:
        held.release()
    if signum is not None:
        signal.signal(signum, signal.SIG_DFL)
        os.kill(os.getpid(), signum)


if __name__ == "__main__":
    main(sys.argv[1:])
