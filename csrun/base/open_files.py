"""Limit of open files (RLIMIT_NOFILE), raised where a run needs it.

The soft limit of a shell is often 1,024, because select() cannot handle larger descriptors; the
hard limit is much higher. csrun raises the soft limit while it needs more files. User code starts
with the limit that the launcher had.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from csrun.base.errors import CsrunError, UsageError

PER_STREAMER = 2  # in the wafer: the two counters of a ring; in the chief: a connection
SPARE = 64  # opened by the interpreter, its modules, a log, a checkpoint
_FOUND = resource.getrlimit(resource.RLIMIT_NOFILE)


def require(streamers: int, command: str) -> None:
    """Refuse a job if one of its processes needs more open files than it may have.

    Raises: UsageError
    """
    needed = PER_STREAMER * streamers + SPARE
    if lacks(needed):
        raise UsageError(
            f"{command}: {streamers:,} streamers need {needed:,} open files in one process, the "
            f"limit of this machine is {_hard():,}: raise it, as root with `ulimit -n {needed}` or "
            "in /etc/security/limits.conf, or use fewer streamers"
        )


def lacks(needed: int) -> bool:
    """True if the hard limit is below this number of open files."""
    hard = _hard()
    return hard != resource.RLIM_INFINITY and hard < needed


@contextmanager
def room_for(more: int) -> Iterator[None]:
    """Context manager that lets this process open `more` additional files, and restores the limit.

    Raises: CsrunError if the hard limit does not allow it
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = before
    needed = len(os.listdir("/proc/self/fd")) + more + SPARE
    if lacks(needed):
        raise CsrunError(
            f"this process needs {needed:,} open files, its limit on {os.uname().nodename} is "
            f"{hard:,}: raise it there with `ulimit -n {needed}`, or use fewer streamers"
        )
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield
        return
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def restore(pid: int) -> None:
    """Reset the limit of a process started meanwhile to the limit before it was raised."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, _FOUND)


def _hard() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]
