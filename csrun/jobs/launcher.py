"""A process by a name that no later one has: its number, and when it began."""

import os
import socket
from pathlib import Path

from csrun.jobs.record import Launcher

_START_FIELD = 19  # of /proc/PID/stat after the command's name, which may hold anything; proc(5)


def this_process() -> Launcher:
    """This process, as the launcher of a job."""
    return Launcher(socket.gethostname(), os.getpid(), _start_of(os.getpid()))


def open_process(launcher: Launcher) -> int | None:
    """A descriptor of a launcher on this machine (see pidfd_open(2)); None when it is gone."""
    try:
        fd = os.pidfd_open(launcher.pid)
        if _start_of(launcher.pid) == launcher.start:
            return fd
    except (ProcessLookupError, FileNotFoundError):
        return None
    os.close(fd)
    return None


def _start_of(pid: int) -> int:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return int(after_name.split()[_START_FIELD])
