"""The lease of a CS system: held by one job at a time, gone with the process that holds it."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Self

from csrun.base.mode import ExecutionMode
from csrun.site import Site, System
from csrun.system.change import drainer
from csrun.system.find import require_usable
from csrun.system.lock import FileLock, WaitingLines, holder_of, is_held, wait_in_line
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
    say = None if on_wait is None else lambda _, obstacle: on_wait(obstacle)
    return acquire_all(site, [system], mode, holder, say)[0]


def acquire_all(
    site: Site,
    systems: Sequence[System],
    mode: ExecutionMode,
    holder: str,
    on_wait: Callable[[str, str], None] | None = None,
) -> list[Lease]:
    """Lease several systems, all or none, as `acquire` does one; in their order.

    While one of them cannot be had, none is held, and nobody who has come later gets any of them.
    `on_wait` is called with the name of the one that is waited for, and why.
    """
    text = f"{holder} (process {os.getpid()})"
    attempts = _Attempts(
        [
            _Attempt(
                site, each, mode, text, None if on_wait is None else partial(on_wait, each.name)
            )
            for each in systems
        ]
    )
    lines = WaitingLines(tuple(line_of(site, system) for system in systems))
    held = wait_in_line(lines, text, attempts.take, attempts.say)
    return [Lease(system, lock) for system, lock in zip(systems, held, strict=True)]


def holder(site: Site, system: System) -> str | None:
    """Holder of the system now, as a text like `job 12 (process 345)`; for messages only."""
    path = lease_file(site, system)
    with changing(site, system):
        return holder_of(path) if is_held(path) else None


@dataclass(frozen=True)
class _Attempts:
    """Looks whether all of several systems can be had at once."""

    each: Sequence["_Attempt"]

    def take(self) -> list[FileLock] | None:
        """The locks of all; None, and no lock is held, while there is something to wait for."""
        with ExitStack() as undo:
            locks = []
            for attempt in self.each:
                if (taken := attempt.take()) is None:
                    return None
                locks.append(undo.enter_context(taken))
            undo.pop_all()
        return locks

    def say(self) -> None:
        """Tell what is waited for, and from now on what it comes to be."""
        obstructed = [attempt for attempt in self.each if attempt.has_obstacle]
        for attempt in self.each:
            attempt.watch()
        (obstructed or self.each)[0].say()


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

    @property
    def has_obstacle(self) -> bool:
        """True if there was something to wait for at the last look."""
        return self._obstacle is not None

    def watch(self) -> None:
        """Tell from now on what there comes to be."""
        self._is_waiting = True

    def say(self) -> None:
        """Tell what is waited for."""
        self._obstacle = self._obstacle or self._held_by()
        self._tell()

    @property
    def _path(self) -> Path:
        return lease_file(self.site, self.system)

    def _tell(self) -> None:
        if self.on_wait is not None and self._obstacle is not None:
            self.on_wait(self._obstacle)

    def _look(self) -> str | None:
        """Obstacle besides another job."""
        state = load_to_change(self.site, self.system)
        require_usable(self.site, self.system, state, self.mode)
        if state.power is Power.BOOTING:
            return f"which is {state.power}"
        who = drainer(self.site, self.system)
        return f"closed to jobs by {who}" if who else None

    def _held_by(self) -> str:
        return f"held by {holder_of(self._path)}"
