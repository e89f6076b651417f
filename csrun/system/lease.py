"""Lease of a CS system: held by one job at a time, released with the process that holds it."""

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
from csrun.system.lock import FileLock, holder_of, is_held
from csrun.system.lock_queue import TicketQueues, wait_in_queue
from csrun.system.power import Power
from csrun.system.state_files import changing, lease_file, load_to_change, queue_of, try_hold


@dataclass(frozen=True)
class Lease:
    """System that this process holds until it releases it or ends."""

    system: System
    file_lock: FileLock

    def release(self) -> None:
        """Release the system for the next job."""
        self.file_lock.release()

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
    """Lease a system that is ACTIVE in `mode`; wait in a queue while it is held, boots or drains.

    holder: who requests it, e.g. `job 12`; the process id is added.
    on_wait: called with what is waited for, e.g. `held by job 11 (process 345)`, and again when
        that changes. Ctrl-C ends the wait.

    Raises: UsageError, CsrunError if the administrator has changed the system meanwhile
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
    """Lease several systems, all or none, as `acquire`; in their order.

    While one of them is not available, none is held, and no later request gets any of them.

    on_wait: called with the name of the system that is waited for, and the reason.
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
    queues = TicketQueues(tuple(queue_of(site, system) for system in systems))
    held = wait_in_queue(queues, text, attempts.take, attempts.report)
    return [Lease(system, lock) for system, lock in zip(systems, held, strict=True)]


def holder(site: Site, system: System) -> str | None:
    """Return the holder of the system, e.g. `job 12 (process 345)`; for messages only."""
    path = lease_file(site, system)
    with changing(site, system):
        return holder_of(path) if is_held(path) else None


@dataclass(frozen=True)
class _Attempts:
    """Repeated attempts to get several systems at once."""

    each: Sequence["_Attempt"]

    def take(self) -> list[FileLock] | None:
        """Return the locks of all; None, without holding any, while there is something to wait
        for.
        """
        with ExitStack() as undo:
            locks = []
            for attempt in self.each:
                if (taken := attempt.take()) is None:
                    return None
                locks.append(undo.enter_context(taken))
            undo.pop_all()
        return locks

    def report(self) -> None:
        """Report what is waited for, and changes of it from now on."""
        obstructed = [attempt for attempt in self.each if attempt.has_obstacle]
        for attempt in self.each:
            attempt.watch()
        (obstructed or self.each)[0].report()


@dataclass
class _Attempt:
    """Repeated attempts to get one system, with the reason of the last failure."""

    site: Site
    system: System
    mode: ExecutionMode
    holder: str
    on_wait: Callable[[str], None] | None
    _is_waiting: bool = False
    _obstacle: str | None = None

    def take(self) -> FileLock | None:
        """Return the system's lock; None while there is something to wait for."""
        with changing(self.site, self.system):
            obstacle = self._find_obstacle()
            taken = None if obstacle else try_hold(self._path, self.holder, self.site.shared)
            if taken is None:
                obstacle = obstacle or self._held_by()
        if obstacle != self._obstacle:
            self._obstacle = obstacle
            if self._is_waiting:
                self._call_on_wait()
        return taken

    @property
    def has_obstacle(self) -> bool:
        """True if there was something to wait for in the last attempt."""
        return self._obstacle is not None

    def watch(self) -> None:
        """Report changes of the reason from now on."""
        self._is_waiting = True

    def report(self) -> None:
        """Report what is waited for."""
        self._obstacle = self._obstacle or self._held_by()
        self._call_on_wait()

    @property
    def _path(self) -> Path:
        return lease_file(self.site, self.system)

    def _call_on_wait(self) -> None:
        if self.on_wait is not None and self._obstacle is not None:
            self.on_wait(self._obstacle)

    def _find_obstacle(self) -> str | None:
        """Return the obstacle, other than another job."""
        state = load_to_change(self.site, self.system)
        require_usable(self.site, self.system, state, self.mode)
        if state.power is Power.BOOTING:
            return f"which is {state.power}"
        who = drainer(self.site, self.system)
        return f"closed to jobs by {who}" if who else None

    def _held_by(self) -> str:
        return f"held by {holder_of(self._path)}"
