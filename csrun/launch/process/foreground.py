"""A command on the user's terminal, which leaves no process behind.

Two processes surround the command, all in one process group: the front, which is the process that
the user started, and a guardian between the two. The kernel sends the signals of the terminal
(Ctrl-C, Ctrl-Z) to the whole group, so the command and job control work as without them. If one of
the two is killed, the other ends the command's descendants and restores the terminal; if both are
killed, the kernel ends the command.

A program may send SIGINT or SIGQUIT to the front, to the group, or to both (`timeout -s INT`); the
command must get it once. The guardian receives what the group gets but not what only the front
gets. The front therefore relays such a signal to the guardian as a real-time signal, and the
guardian forwards it unless the command has already received it with the group.
"""

import os
import signal
import sys
import termios
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from time import monotonic, sleep
from typing import Any, Self

from csrun.base.errors import shell_code
from csrun.base.mode import BURST_S, GRACE_S
from csrun.launch.process import process_tree
from csrun.launch.process.task_process import EXIT_NOT_EXECUTABLE


@dataclass(frozen=True)
class Terminal:
    """Controlling terminal of this process's group, with its modes at the start."""

    fd: int
    group: int
    modes: list[Any]

    @classmethod
    def remember(cls) -> Self | None:
        """Return the terminal if this process is in its foreground group."""
        try:
            fd = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        except OSError:
            return None
        group = os.getpgrp()
        if os.tcgetpgrp(fd) != group:  # in the background the terminal must not be changed
            os.close(fd)
            return None
        return cls(fd, group, termios.tcgetattr(fd))

    def restore(self) -> None:
        """Restore modes and foreground group, unless another living group is in the foreground.

        Call it after the command and all of its descendants have ended: a group in the foreground
        then is a shell's, which has set up the terminal for itself.
        """
        # tcsetpgrp(3) from the background stops the caller by SIGTTOU unless that is blocked.
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTTOU])
        with suppress(OSError, termios.error):  # the terminal may be gone, too
            if not self._is_taken():
                os.tcsetpgrp(self.fd, self.group)
                termios.tcsetattr(self.fd, termios.TCSANOW, self.modes)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)

    def _is_taken(self) -> bool:
        foreground = os.tcgetpgrp(self.fd)
        if foreground in (0, self.group):
            return False
        try:
            os.killpg(foreground, 0)
        except ProcessLookupError:
            return False
        # kill(2): EPERM means that it lives, under another account
        except PermissionError:
            pass
        return True


# not the front's name: `pkill -INT csrun_cpu` is meant for the front
GUARDIAN_NAME = "csrun-guardian"
GUARDIAN_S = 1.0  # seconds beyond the command's grace period, for the guardian to end
_KEYS = frozenset({signal.SIGINT, signal.SIGQUIT})
#: Signals from the front to the guardian; they are queued, and delivered after the group's own.
_RELAYED: dict[int, int] = {signal.SIGINT: signal.SIGRTMIN, signal.SIGQUIT: signal.SIGRTMIN + 1}
_KEY_OF = {relayed: key for key, relayed in _RELAYED.items()}
_WATCHED = _KEYS | {signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP, *_KEY_OF}
_SI_KERNEL = 0x80  # siginfo.si_code of signals from the kernel, e.g. for a key; see sigaction(2)


@dataclass(frozen=True)
class ForegroundCommand:
    """A command, its environment, and the descriptors to keep open while it lives.

    output: descriptor for the command's output, in place of the terminal.
    grace_s: time from the signal to end until the kill.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    kept_fds: tuple[int, ...] = ()
    output: int | None = None
    time_limit_s: float | None = None
    grace_s: float = GRACE_S


@dataclass
class Ending:
    """End of a command: exit code (128 + signal if killed), and the signal that had asked it to
    end.
    """

    exit_code: int = 0
    asked_by: signal.Signals | None = None
    timed_out: bool = False


def run_in_foreground(command: ForegroundCommand) -> Ending:
    """Run a command on this terminal.

    kept_fds: descriptors that stay open until all of the command's processes have ended, even if
        this process is killed.
    """
    terminal = Terminal.remember()
    # sigtimedwait needs blocked signals; none is lost between two calls.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    # locks close their descriptor in a forked process
    kept = [os.dup(fd) for fd in command.kept_fds]
    process_tree.become_subreaper()
    # Otherwise both processes would write the buffered text.
    sys.stdout.flush()
    front = os.getpid()
    guardian = os.fork()
    if guardian == 0:
        _guard(command, front, terminal, mask)
    try:
        grace_s = command.grace_s + GUARDIAN_S
        return _wait_for(guardian, grace_s, _relayed, command.time_limit_s)
    finally:
        _clean_up(terminal)
        for fd in kept:
            os.close(fd)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _guard(
    command: ForegroundCommand, front: int, terminal: Terminal | None, mask: Iterable[int]
) -> None:
    """Guardian: starts the command, waits for it, and exits with its exit code."""
    code = 1
    try:
        process_tree.become_subreaper()
        # SIGHUP, not SIGKILL: the guardian still has to end the command's descendants.
        process_tree.die_with_parent(front, signal.SIGHUP)
        process_tree.set_name(GUARDIAN_NAME)
        process_tree.set_command_line(GUARDIAN_NAME)
        guardian = os.getpid()
        while signal.sigtimedwait(_KEYS, 0):  # the command, not yet started, has not received it
            pass
        pid = os.fork()
        if pid == 0:
            process_tree.die_with_parent(guardian)  # both may be killed, e.g. by `pkill csrun_cpu`
            _become(command, mask)
        code = _wait_for(pid, command.grace_s, GroupKeys(pid).missed).exit_code
        _clean_up(terminal)
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(code)


def _become(command: ForegroundCommand, mask: Iterable[int]) -> None:
    # Python ignores these two; another program expects their defaults.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # a pending signal is delivered now
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    if command.output is not None:
        for stream in (1, 2):
            os.dup2(command.output, stream)
    try:
        os.execvpe(command.argv[0], command.argv, command.environment)
    except OSError as error:
        print(f"{command.argv[0]}: cannot be run: {error.strerror}", file=sys.stderr, flush=True)
    finally:
        os._exit(EXIT_NOT_EXECUTABLE)


def _wait_for(
    pid: int,
    grace_s: float,
    key_for: Callable[[signal.struct_siginfo], int | None],
    time_limit_s: float | None = None,
) -> Ending:
    """Wait for a child, forward signals, and kill it if it does not end in time.

    key_for: returns the signal to forward for a SIGINT or SIGQUIT, or for a relayed one.
    """
    ending = Ending()
    limit_at_s = inf if time_limit_s is None else monotonic() + time_limit_s
    deadline_s = inf
    while True:
        # sigtimedwait has no infinite timeout.
        timeout_s = min(min(deadline_s, limit_at_s) - monotonic(), threading.TIMEOUT_MAX)
        info = signal.sigtimedwait(_WATCHED, max(0.0, timeout_s))
        if (code := process_tree.reap().get(pid)) is not None:
            ending.exit_code = shell_code(code)
            return ending
        if info is not None and info.si_signo in (signal.SIGTERM, signal.SIGHUP):
            asked = ending.asked_by = signal.Signals(info.si_signo)
        elif info is not None and info.si_signo != signal.SIGCHLD:
            if (key := key_for(info)) is not None:
                os.kill(pid, key)
            continue
        elif monotonic() >= deadline_s:
            asked, deadline_s = signal.SIGKILL, inf
        elif monotonic() >= limit_at_s:
            asked, limit_at_s, ending.timed_out = signal.SIGTERM, inf, True
        else:
            continue
        os.kill(pid, asked)
        if asked is not signal.SIGKILL:
            os.kill(0, signal.SIGCONT)  # to the group, which Ctrl-Z may have stopped
            deadline_s = min(deadline_s, monotonic() + grace_s)


def _relayed(info: signal.struct_siginfo) -> int | None:
    """Signal by which the front relays a key signal that did not come from the terminal."""
    if info.si_code == _SI_KERNEL or info.si_signo not in _KEYS:
        return None
    sleep(BURST_S)
    signal.sigtimedwait({info.si_signo}, 0)  # the same signal, if the group got it, too
    return _RELAYED[info.si_signo]


class GroupKeys:
    """Record of the key signals that a program has sent to the whole group, kept by the
    guardian.
    """

    def __init__(self, command_pid: int) -> None:
        self._pid = command_pid
        self._seen: set[int] = set()

    def missed(self, info: signal.struct_siginfo) -> int | None:
        """Return the key signal that the front relays, unless the command got it with the group."""
        if info.si_signo in _KEYS:
            if info.si_code != _SI_KERNEL:
                self._seen.add(info.si_signo)
            return None
        key = _KEY_OF[info.si_signo]
        came_to_group = key in self._seen
        self._seen.discard(key)
        return None if came_to_group and self._is_in_group() else key

    def _is_in_group(self) -> bool:
        return os.getpgid(self._pid) == os.getpgrp()


def _clean_up(terminal: Terminal | None) -> None:
    process_tree.kill_descendants()
    if terminal is not None:
        terminal.restore()
