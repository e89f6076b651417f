"""The end of a process tree, however deep, and however fast it grows."""

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
    """Adopt every orphan among this process's descendants, instead of init."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int, signum: int = signal.SIGKILL) -> None:
    """Get a signal when the parent dies; at once when it is dead already."""
    _prctl(_PR_SET_PDEATHSIG, int(signum))
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signum)


def outlive_parent() -> None:
    """Take `die_with_parent` back."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def set_name(name: str) -> None:
    """Name this process in `ps -o comm` and top; the kernel takes its first 15 bytes."""
    _prctl(_PR_SET_NAME, name.encode())


def set_command_line(text: str) -> None:
    """Name this process in `ps -f`, and for `pkill -f`, in place of the words it was started with.

    Source: proc_pid_stat(5), fields 48 and 49: where the words lie in this process's memory
    """
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = (int(fields[number - 3]) for number in (48, 49))
    if start < end:
        # The kernel shows no more than the memory of the first command line.
        words = text.encode()[: end - start - 1]
        ctypes.memset(start, 0, end - start)
        ctypes.memmove(start, words, len(words))


def _prctl(option: int, value: int | bytes) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


_PAUSE_S = 0.005  # for killed processes to become zombies, and orphans to be handed to us


def kill_descendants() -> None:
    """Kill and reap all that descends from this process, which must be a subreaper."""
    import psutil  # at the end of a task: it would make its start later

    me = psutil.Process()
    while True:
        reap()
        descendants = me.children(recursive=True)
        if not descendants:
            return
        # Round after round: a process may fork between the listing and its own end.
        for process in descendants:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        sleep(_PAUSE_S)


def reap() -> dict[int, int]:
    """Collect every dead child: process id to exit code, negative for a signal's number."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)
