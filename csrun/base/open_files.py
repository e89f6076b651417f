"""Limit of open files (RLIMIT_NOFILE), raised where a run needs it.

What a shell gives is often 1,024, and far more may be asked for: the soft limit is for programs
that use select(), which counts to 1,024. csrun's own parts raise it for as long as they need it,
and whatever runs a user's code starts with the limit that the launcher was given.
"""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager

from csrun.base.errors import CsrunError, UsageError

PER_STREAMER = 2  # in the wafer: the two counters of a ring; in the chief: a connection
SPARE = 64  # an interpreter's own, its modules', a log, a checkpoint
_FOUND = resource.getrlimit(resource.RLIMIT_NOFILE)


def require(streamers: int, command: str) -> None:
    """Refuse a job with a process that may not open as many files as it will have to.

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
    """True if not even the hard limit allows so many open files."""
    hard = _hard()
    return hard != resource.RLIM_INFINITY and hard < needed


@contextmanager
def room_for(more: int) -> Iterator[None]:
    """Let this process open `more` files in addition to those open; restore it afterwards.

    Raises: CsrunError when the hard limit does not allow it
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
    """Give a process that was started meanwhile the limit that this one was started with."""
    resource.prlimit(pid, resource.RLIMIT_NOFILE, _FOUND)


def _hard() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[1]
