"""The lease of a CS system: held by one job at a time, gone with the process that holds it."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from csrun.base.mode import ExecutionMode
from csrun.site import Site, System
from csrun.system.change import drainer
from csrun.system.find import require_usable
from csrun.system.lock import FileLock, holder_of, is_held, wait_in_line
from csrun.system.power import Power
from csrun.system.state_files import changing, lease_file, line_of, load_to_change, try_hold


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
    """Lease a system that is ACTIVE in `mode`, waiting in turn while it is held, boots or drains.

    `holder` says who we are, e.g. `job 12`; the process id is added to it. `on_wait` is called
    with what is waited for, e.g. `held by job 11 (process 345)`, and again when that changes.
    Ctrl-C ends the waiting.

    Raises: UsageError, CsrunError when the administrator has changed the system meanwhile
    """
    text = f"{holder} (process {os.getpid()})"
    attempt = _Attempt(site, system, mode, text, on_wait)
    line = line_of(site, system)
    return Lease(system, wait_in_line(line, text, attempt.take, attempt.say))


def holder(site: Site, system: System) -> str | None:
    """Who has the system now, as a text like `job 12 (process 345)`; for messages alone."""
    path = lease_file(site, system)
    with changing(site, system):
        return holder_of(path) if is_held(path) else None


@dataclass
class _Attempt:
    """Looks whether the system can be had, and remembers why not."""

    site: Site
    system: System
    mode: ExecutionMode
    holder: str
    on_wait: Callable[[str], None] | None
    _is_waiting: bool = False
    _obstacle: str | None = None

    def take(self) -> FileLock | None:
        """The system's lock; None while there is something to wait for."""
        with changing(self.site, self.system):
            obstacle = self._look()
            taken = None if obstacle else try_hold(self._path, self.holder, self.site.shared)
            if taken is None:
                obstacle = obstacle or self._held_by()
        if obstacle != self._obstacle:
            self._obstacle = obstacle
            if self._is_waiting:
                self._tell()
        return taken

    def say(self) -> None:
        """Tell what is waited for, and from now on what it comes to be."""
        self._is_waiting = True
        self._obstacle = self._obstacle or self._held_by()
        self._tell()

    @property
    def _path(self) -> Path:
        return lease_file(self.site, self.system)

    def _tell(self) -> None:
        if self.on_wait is not None and self._obstacle is not None:
            self.on_wait(self._obstacle)

    def _look(self) -> str | None:
        """What there is to wait for besides another job."""
        state = load_to_change(self.site, self.system)
        require_usable(self.site, self.system, state, self.mode)
        if state.power is Power.BOOTING:
            return f"which is {state.power}"
        who = drainer(self.site, self.system)
        return f"kept from jobs by {who}" if who else None

    def _held_by(self) -> str:
        return f"held by {holder_of(self._path)}"
