"""What the processes that fork tasks have in common.

They are the fork server, for all of a job's tasks on one machine, and on a cluster the attendant of
each task.
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

from csrun.context.link import UNREADABLE, Message
from csrun.launch.command import mode_of
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
        """Count who has reported in; with the last task the gate opens, and this is True."""
        self._missing -= os.eventfd_read(self._arrivals)
        self._is_open = self._missing <= 0  # below it by tasks that have started again
        if self._is_open:
            os.close(self._held_shut)
        return self._is_open

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
_decoder = msgspec.msgpack.Decoder(Message)


class Closable(Protocol):
    """What is ours alone, and not for a forked task."""

    def close(self) -> None:
        """Give it up."""


def bind_link(job_dir: Path, name: str) -> socket.socket:
    """The socket in a job's folder that its tasks' messages come to."""
    # A socket path is limited to 108 bytes, a job's folder is not: go through its descriptor.
    link = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    folder = os.open(job_dir, os.O_RDONLY | os.O_DIRECTORY)
    link.bind(f"/proc/self/fd/{folder}/{name}")
    os.close(folder)
    return link


def receive(link: socket.socket) -> Message | None:
    """The next message of a task; None, with a word in the log, for what is no message."""
    try:
        message: Message = _decoder.decode(link.recv(DATAGRAM_BYTES))
    except UNREADABLE as error:
        print(f"a message that is none: {error}", file=sys.stderr)
        return None
    return message


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
