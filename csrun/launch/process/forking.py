"""The tasks of a job on one node: forked, signalled and reaped by the one process that has them.

It is the fork server, for all of a job's tasks on one machine, and on a cluster the attendant of
each node. It has one thread, and has imported what the tasks want: they start in the time of a
fork, and share its memory.
"""

import gc
import importlib
import os
import signal
import socket
import struct
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NoReturn, Protocol

import msgspec

from csrun.base.errors import CsrunError
from csrun.base.stored import UNREADABLE
from csrun.context import JobFile, SpawnWafer
from csrun.context.job import RUNS_DIR, SECRET_FILE
from csrun.context.link import Message
from csrun.jobs.folder import JobFolder
from csrun.launch.command import mode_of
from csrun.launch.process.process_tree import kill_descendants, reap
from csrun.launch.process.protocol import SignalTasks, StartTask


class Gate:
    """Made by the fork server, passed once by every task that is forked from it."""

    def __init__(self, tasks: int) -> None:
        self._missing = tasks
        self._is_open = False
        self._arrivals = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._opening, self._held_shut = os.pipe()

    def fileno(self) -> int:
        """The descriptor that is readable when tasks have reported in."""
        return self._arrivals

    def take_arrivals(self) -> bool:
        """Count who has reported in; with the last task the gate opens, and this is True, once.

        Tasks that have started again are counted again: of those that came before the opening,
        some may report in after it.
        """
        self._missing -= os.eventfd_read(self._arrivals)
        if self._is_open or self._missing > 0:
            return False
        self._is_open = True
        os.close(self._held_shut)
        return True

    def enter(self) -> None:
        """Report in and wait for the others; in a forked task. It opens once for all of a job."""
        if self._is_open:
            self.leave()
            return
        os.close(self._held_shut)  # the reader's end sees the end when nobody holds this one
        os.eventfd_write(self._arrivals, 1)
        os.read(self._opening, 1)
        self.leave()

    def leave(self) -> None:
        """Let go of the gate without a word."""
        os.close(self._arrivals)
        os.close(self._opening)


DATAGRAM_BYTES = 1 << 16
WAFER_MODULE = "csrun.runtime.roles.wafer"
_CREDENTIALS = struct.Struct("iII")  # struct ucred: pid, uid, gid
_decoder = msgspec.msgpack.Decoder(Message)


class Closable(Protocol):
    """What is ours alone, and not for a forked task."""

    def close(self) -> None:
        """Give it up."""


def bind_link(job_dir: Path, name: str) -> socket.socket:
    """The socket in a job's folder that its tasks' messages come to, with who has sent each."""
    # A socket path is limited to 108 bytes, a job's folder is not: go through its descriptor.
    link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    link.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    folder = os.open(job_dir, os.O_RDONLY | os.O_DIRECTORY)
    mask = os.umask(0o077)
    try:
        link.bind(f"/proc/self/fd/{folder}/{name}")
    finally:
        os.umask(mask)
        os.close(folder)
    return link


def receive(link: socket.socket) -> Message | None:
    """The next message of a task; None, with a word in the log, for what is no message.

    What another account has sent is dropped undecoded.
    """
    data, ancillary, _, _ = link.recvmsg(DATAGRAM_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
    sender = _sender(ancillary)
    if sender != os.getuid():
        print(f"a message of another account, uid {sender}: dropped", file=sys.stderr)
        return None
    try:
        message: Message = _decoder.decode(data)
    except UNREADABLE as error:
        print(f"a message that is none: {error}", file=sys.stderr)
        return None
    return message


def _sender(ancillary: Iterable[tuple[int, int, bytes]]) -> int | None:
    """The account that the kernel says has sent a datagram; unix(7), SCM_CREDENTIALS."""
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_CREDENTIALS):
            _, uid, _ = _CREDENTIALS.unpack(data)
            return int(uid)
    return None


def is_permitted(message: Message, job: JobFile) -> bool:
    """Whether the job may have what a task asks for: a wafer is of a system of its site, and of the
    one that it was given, where a scheduler gives them.

    What is asked for besides is told in the log.
    """
    if not isinstance(message, SpawnWafer):
        return True
    from csrun.site import load  # reads YAML, which a server of tasks without a wafer never does

    try:
        known = [job.system] if job.system else [s.name for s in load(job.site).systems]
    except CsrunError as error:
        print(f"a wafer of {message.system} was asked for: {error}", file=sys.stderr)
        return False
    if message.system in known and message.run >= 0:
        return True
    print(
        f"a wafer of {message.system!r} for run {message.run} was asked for: the job may have"
        f" {', '.join(known)}",
        file=sys.stderr,
    )
    return False


def with_command(start: StartTask, job: JobFile, job_dir: Path) -> StartTask:
    """The task with the command line that it runs: a wafer's is made here."""
    if start.wafer is None:
        return start
    run = job_dir / RUNS_DIR / str(start.run)
    arguments = (str(run), str(job.job_id), str(job_dir / SECRET_FILE), start.wafer)
    return msgspec.structs.replace(start, argv=(sys.executable, "-m", WAFER_MODULE, *arguments))


def signal_pipe(handled: Iterable[signal.Signals]) -> tuple[socket.socket, socket.socket]:
    """A socket that gets the number of each of these signals, and its other end."""
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    signal.set_wakeup_fd(writer.fileno())
    for signum in handled:
        signal.signal(signum, lambda *_: None)
    return reader, writer


def fork_task(
    handled: Collection[signal.Signals], owned: Iterable[Closable], become: Callable[[], NoReturn]
) -> int:
    """Fork a process that closes what is `owned` and does what `become` says; its number."""
    # A signal that meets the child before it has left would be written into our own pipe.
    signal.pthread_sigmask(signal.SIG_BLOCK, handled)
    pid = os.fork()
    if pid == 0:
        _leave(handled, owned)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
        become()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, handled)
    with suppress(OSError):  # the child does the same, and may have gone on already
        os.setpgid(pid, pid)
    return pid


def send_signal(tasks: Mapping[int, StartTask], message: SignalTasks) -> None:
    """Signal those of our unreaped tasks that the message names, with all that they have started.

    A task that runs in a forked process of ours passes on what asks it to end, when it ends: the
    workers of a streamer's DataLoader make batches until then.
    """
    for pid, task in tasks.items():
        if task.name in message.names:
            is_passed_on = message.signum != signal.SIGKILL and runs_in_process(task.argv)
            send = os.kill if is_passed_on else os.killpg
            send(pid, message.signum)  # unreaped, so the number is still its own


def runs_in_process(argv: tuple[str, ...]) -> bool:
    """Whether the forked process itself runs the command: Python of our own, a script or module."""
    if mode_of(argv) is None or len(argv) < 2:
        return False
    return len(argv) > 2 if argv[1] == "-m" else not argv[1].startswith("-")


def _leave(handled: Iterable[signal.Signals], owned: Iterable[Closable]) -> None:
    signal.set_wakeup_fd(-1)
    for signum in handled:
        signal.signal(signum, signal.SIG_DFL)
    for each in owned:
        each.close()
    os.setpgid(0, 0)


ALWAYS = ("numpy",)  # of what each Python of csrun's wants


class NodeTasks:
    """The tasks that live here, their link to us, their gate, and the signals that we get."""

    def __init__(
        self, folder: JobFolder, link: str, planned: int, handled: Collection[signal.Signals]
    ) -> None:
        self.link = bind_link(folder.path, link)
        self.gate = Gate(planned)
        self.signals, self._wakeup = signal_pipe(handled)
        self._folder = folder
        self._handled = handled
        self._pid = os.getpid()
        self._living: dict[int, StartTask] = {}
        self._has_ended = False

    def __len__(self) -> int:
        """How many live, the wafers among them."""
        return len(self._living)

    def start(self, ordered: StartTask, job: JobFile, owned: Iterable[Closable] = ()) -> None:
        """Fork a task, which closes what is `owned` by this process; the first that start again
        find nothing of those that have ended.
        """
        # Here, as an attendant reports in before it imports what tasks want.
        from csrun.launch.process.task_process import become_task

        start = with_command(ordered, job, self._folder.path)
        if self._has_ended and not self._living:
            kill_descendants()
            self._has_ended = False
        pid = fork_task(
            self._handled,
            (*owned, self.link, self.signals, self._wakeup),
            lambda: become_task(start, job, self._folder, self._pid, self.gate),
        )
        self._living[pid] = start

    def send_signal(self, message: SignalTasks) -> None:
        """Signal those that the message names."""
        send_signal(self._living, message)

    def heard(self, job: JobFile) -> Message | None:
        """What a task has said, if it may."""
        message = receive(self.link)
        return message if message is not None and is_permitted(message, job) else None

    def reap(self) -> list[tuple[StartTask, int]]:
        """Those that have ended, each with its exit code; peers are told of who has ended well."""
        ended = []
        for pid, exit_code in reap().items():
            if task := self._living.pop(pid, None):  # else an orphan that we adopted
                self._has_ended = True
                if exit_code == 0 and task.wafer is None:
                    self._folder.mark_ended(task.rank)
                ended.append((task, exit_code))
        return ended


def preload(modules: Iterable[str]) -> None:
    """Import what the tasks will want, once for all that are forked from this process."""
    for module in modules:
        try:
            importlib.import_module(module)
        except Exception:  # a task that imports it fails in its own name, for the user to read
            traceback.print_exc()
    from csrun.launch.process.task_process import blas  # looks for NumPy's

    blas()
    gc.freeze()  # keeps the tasks' garbage collectors from copying our pages
