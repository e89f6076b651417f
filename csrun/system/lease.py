"""The lease of a CS system: held by one job at a time, gone with the process that holds it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from csrun.mode import ExecutionMode
from csrun.site import Site, System
from csrun.system.find import require_ready
from csrun.system.lock import FileLock, holder_of, try_lock
from csrun.system.state import systems_dir
from csrun.system.waiting import WaitingLine, wait_in_line


@dataclass(frozen=True)
class Lease:
    """A system that this process has to itself, until it releases it or dies."""

    system: System
    held: FileLock

    def release(self) -> None:
        """Let the next job have the system."""
        self.held.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def acquire(
    site: Site,
    system: System,
    mode: ExecutionMode,
    holder: str,
    on_wait: Callable[[str], None] | None = None,
) -> Lease:
    """Lease a system that is ACTIVE in `mode`, waiting in turn while another job holds it.

    `holder` says who we are, e.g. `job 12`; the process id is added to it. `on_wait` is called
    once with the present holder's text, when there is one. Ctrl-C ends the waiting.

    Raises: UsageError, CsrunError when the administrator has changed the system meanwhile
    """
    path = systems_dir(site) / f"{system.name}.lock"
    line = WaitingLine(systems_dir(site) / f"{system.name}.line")
    text = f"{holder} (process {os.getpid()})"

    def say() -> None:
        if on_wait is not None:
            on_wait(holder_of(path))

    lease = Lease(system, wait_in_line(line, text, lambda: try_lock(path, text), say))
    try:
        require_ready(site, system, mode)
    except BaseException:
        lease.release()
        raise
    return lease
