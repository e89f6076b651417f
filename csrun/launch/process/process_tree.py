"""The end of a process tree, however deep, and however fast it grows."""

import os
from contextlib import suppress
from time import sleep

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
