"""Tasks of a job on one node: forked, signalled and reaped by one process.

This process is the fork server, for all tasks on one machine, or the node agent of each node of a
cluster. It has one thread and has imported the modules that the tasks need, so a task starts in the
time of a fork and shares their memory.
"""

import os
import signal
import socket
import sys
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec

from csrun.context import JobFile
from csrun.context.job import RUNS_DIR, SECRET_FILE
from csrun.context.launcher_link import Message
from csrun.jobs.folder import JobFolder
from csrun.launch.process.process_limit import naming_limit
from csrun.launch.process.process_tree import kill_descendants, reap
from csrun.launch.process.protocol import SignalTasks, StartTask
from csrun.launch.process.start_barrier import StartBarrier
from csrun.launch.process.task_link import bind_link, is_permitted, receive
from csrun.launch.process.task_process import become_task, runs_in_process

WAFER_MODULE = "csrun.runtime.roles.wafer"
_SIGNALS = 1 << 12  # bytes read at once, one per signal


class Closable(Protocol):
    """Resource of this process that a forked task must not inherit."""

    def close(self) -> None:
        """Close it."""


def with_command(start: StartTask, job: JobFile, job_dir: Path) -> StartTask:
    """Return the task with its command line; a wafer's command line is built here."""
    if start.wafer is None:
        return start
    run = job_dir / RUNS_DIR / str(start.run)
    arguments = (str(run), str(job.job_id), str(job_dir / SECRET_FILE), start.wafer)
    return msgspec.structs.replace(start, argv=(sys.executable, "-m", WAFER_MODULE, *arguments))


def signal_pipe(handled: Iterable[signal.Signals]) -> tuple[socket.socket, socket.socket]:
    """Return a socket that receives the number of each of these signals, and its other end."""
    reader, writer = socket.socketpair()
    # required by signal.set_wakeup_fd: a full socket must not block in a signal handler
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno())
    for signum in handled:
        # Only signals with a Python handler are written to the wakeup descriptor.
        signal.signal(signum, lambda *_: None)
    return reader, writer


def fork_task(
    handled: Collection[signal.Signals], owned: Iterable[Closable], become: Callable[[], NoReturn]
) -> int:
    """Fork a process that closes `owned` and then calls `become`; return its process id.

    Raises: CsrunError if the account or the machine has reached its limit of processes
    """
    # A signal before the child resets its handlers would be written into our own pipe.
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    try:
        with naming_limit():
            pid = os.fork()
        if pid == 0:
            _leave(handled, owned)
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    if pid == 0:
        become()
    with suppress(OSError):  # the child does the same, and may have continued already
        os.setpgid(pid, pid)
    return pid


def send_signal(tasks: Mapping[int, StartTask], message: SignalTasks) -> None:
    """Signal the process groups of the named tasks that are not reaped yet.

    A task that runs in a forked process of ours forwards the signal to its children when it ends:
    the workers of a streamer's DataLoader make batches until then.
    """
    for pid, task in tasks.items():
        if task.name in message.names:
            is_passed_on = message.signum != signal.SIGKILL and runs_in_process(task.argv)
            send = os.kill if is_passed_on else os.killpg
            send(pid, message.signum)  # not reaped, so the process id is still its own


def _leave(handled: Iterable[signal.Signals], owned: Iterable[Closable]) -> None:
    signal.set_wakeup_fd(-1)
    for signum in handled:
        signal.signal(signum, signal.SIG_DFL)
    for each in owned:
        each.close()
    os.setpgid(0, 0)


class NodeTasks:
    """Living tasks of this node, with their link, their gate, and the signals of this process."""

    def __init__(
        self, folder: JobFolder, link: str, planned: int, handled: Collection[signal.Signals]
    ) -> None:
        self.link = bind_link(folder.path, link)
        self.start_barrier = StartBarrier(planned)
        self.signals, self._wakeup = signal_pipe(handled)
        self._folder = folder
        self._handled = handled
        self._pid = os.getpid()
        self._living: dict[int, StartTask] = {}
        self._has_ended = False

    def __len__(self) -> int:
        """Number of living tasks, wafers included."""
        return len(self._living)

    @property
    def names(self) -> set[str]:
        """Names of living tasks."""
        return {task.name for task in self._living.values()}

    def start(self, ordered: StartTask, job: JobFile, owned: Iterable[Closable] = ()) -> None:
        """Fork a task, which closes `owned`. The first task of a restart clears the state of ended
        ones.
        """
        start = with_command(ordered, job, self._folder.path)
        if self._has_ended and not self._living:
            kill_descendants()
            self._has_ended = False
        pid = fork_task(
            self._handled,
            (*owned, self.link, self.signals, self._wakeup),
            lambda: become_task(start, job, self._folder, self._pid, self.start_barrier),
        )
        self._living[pid] = start

    def send_signal(self, message: SignalTasks) -> None:
        """Signal the tasks that the message names."""
        send_signal(self._living, message)

    def receive(self, job: JobFile | None) -> Message | None:
        """Return the next permitted message of a task; None before there is a job."""
        message = receive(self.link)
        if message is None or job is None:
            return None
        return message if is_permitted(message, job) else None

    def received(self) -> bytes:
        """Return the numbers of the received signals."""
        return self.signals.recv(_SIGNALS)

    def reap(self) -> list[tuple[StartTask, int]]:
        """Reap ended tasks and return their exit codes; peers are notified of successful ends."""
        ended = []
        for pid, exit_code in reap().items():
            if task := self._living.pop(pid, None):  # otherwise an adopted orphan
                self._has_ended = True
                if exit_code == 0 and task.wafer is None:
                    self._folder.mark_ended(task.rank)
                ended.append((task, exit_code))
        return ended
