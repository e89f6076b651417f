"""Termination of a process tree of any depth, also while it forks."""

import ctypes
import os
import signal
from contextlib import suppress
from time import sleep

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Make this process the parent of orphaned descendants, in place of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int, signum: int = signal.SIGKILL) -> None:
    """Get a signal when the parent dies; immediately if it is dead already."""
    _prctl(_PR_SET_PDEATHSIG, int(signum))
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signum)


def outlive_parent() -> None:
    """Undo `die_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def set_name(name: str) -> None:
    """Set the name in `ps -o comm` and top; the kernel keeps 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode())


def set_command_line(text: str) -> None:
    """Set the command line that `ps -f` and `pkill -f` see.

    Source: proc_pid_stat(5), fields 48 and 49: addresses of the arguments in this process's memory
    """
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = (int(fields[number - 3]) for number in (48, 49))
    if start < end:
        # The kernel shows at most as many bytes as the original command line had.
        shown = text.encode()[: end - start - 1]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, shown, len(shown))


def _prctl(option: int, value: int | bytes) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


_PAUSE_S = 0.005  # for killed processes to become zombies, and for orphans to be reparented


def kill_descendants() -> None:
    """Kill and reap all descendants of this process, which must be a subreaper."""
    import psutil  # local: the import would delay the start of a task

    me = psutil.Process()
    while True:
        reap()
        descendants = me.children(recursive=True)
        if not descendants:
            return
        # Repeatedly: a process may fork between the listing and its end.
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        sleep(_PAUSE_S)


def reap() -> dict[int, int]:
    """Reap all dead children: exit codes by process id, negative for signals."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)
