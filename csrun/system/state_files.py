"""Stored state of the systems: one small file each, written atomically, next to lock files.

Files instead of a database: the state folder may be on a shared file system, where SQLite's locks
are unreliable, but a rename is atomic. A change is read, decided and written under a separate lock
(`changing`), which the kernel releases with its holder. A process killed at any point leaves the
old or the new state, and no lock.
"""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from csrun.base import stored
from csrun.base.errors import CsrunError
from csrun.base.files import SHARED, SHARED_STICKY, make_for_group, make_private
from csrun.context import site_state_dir
from csrun.site import Site, System
from csrun.system.lock import FileLock, lock, lock_errors, try_lock
from csrun.system.lock_queue import TicketQueue
from csrun.system.power import Power, SystemState

_SHARED_FOLDERS = {
    "systems": SHARED,
    "nodes": SHARED,
    "board": SHARED_STICKY,
    "accounts": SHARED_STICKY,
}


def load_state(site: Site, system: System) -> SystemState:
    """Return the current state; a system that was never configured is ACTIVE in its site file's
    mode.

    A damaged file is renamed, with a warning, and rebuilt from the site file.

    Raises: CsrunError if the state cannot be read
    """
    try:
        return _read(site, system)
    except stored.DamagedError:
        with changing(site, system):
            return load_to_change(site, system)


def load_to_change(site: Site, system: System) -> SystemState:
    """Return the current state, while `changing` the system."""
    try:
        return _read(site, system)
    except stored.DamagedError as error:
        return _rebuild(site, system, error)


def save_state(site: Site, system: System, state: SystemState) -> None:
    """Write the state atomically; it is on disk when this returns.

    Raises: CsrunError if it cannot be written
    """
    path = _state_file(site, system)
    with _writing(path, system):
        make_site_folders(site)
        mode = 0o660 if site.shared else None
        stored.write(path, state, mode=mode)


def changing(site: Site, system: System) -> FileLock:
    """Context manager of exclusive access to a system's locks and state."""
    path = systems_dir(site) / f"{system.name}.change.lock"
    with lock_errors(path):
        make_site_folders(site)
        return lock(path, f"process {os.getpid()}", site.shared)


def make_site_folders(site: Site) -> None:
    """Create the folders of a site's state; on a shared site, those that its accounts share.

    In `systems` and `nodes` all accounts may write: leases, queues, power and mode. In `board` each
    account has a folder that others can read, in `accounts` a private one.

    Raises: OSError; UsageError if a folder of a site that is not shared belongs to another account
    """
    top = site_state_dir(site.name)
    if not site.shared:
        make_private(systems_dir(site))
        return
    make_for_group(top, SHARED_STICKY)
    for name, mode in _SHARED_FOLDERS.items():
        make_for_group(top / name, mode)


def try_hold(path: Path, holder: str, shared: bool) -> FileLock | None:
    """Take one of a system's locks; None if another process holds it.

    Raises: CsrunError if it cannot be taken
    """
    with lock_errors(path):
        return try_lock(path, holder, shared)


def systems_dir(site: Site) -> Path:
    """Return the folder with a site's system states and leases."""
    return site_state_dir(site.name) / "systems"


def lease_file(site: Site, system: System) -> Path:
    """Return the file that the holder of a system locks."""
    return systems_dir(site) / f"{system.name}.lock"


def queue_of(site: Site, system: System) -> TicketQueue:
    """Return the queue of the processes that wait for a system."""
    return TicketQueue(systems_dir(site) / f"{system.name}.line", site.shared)


def _read(site: Site, system: System) -> SystemState:
    path = _state_file(site, system)
    remedy = "fix its permissions, or set CSRUN_STATE_DIR to a writable folder"
    try:
        state = stored.read(path, SystemState, f"the state of {system.name}", remedy)
    except FileNotFoundError:
        return SystemState(Power.ACTIVE, system.mode)
    return state.at(time.time())


def _rebuild(site: Site, system: System, error: Exception) -> SystemState:
    import logging

    path = _state_file(site, system)
    # Kept instead of deleted: the content may show an administrator the cause.
    aside = path.with_name(f"{path.name}.damaged-{time.time_ns()}")
    state = SystemState(Power.ACTIVE, system.mode)
    with _writing(path, system), _kept_as(aside, path):
        save_state(site, system, state)
    logging.getLogger("csrun").warning(
        f"{path}: the state of {system.name} is damaged ({error.__cause__}) and moved to "
        f"{aside.name}; {system.name} is reset to {state.power} in {state.mode} mode, from its "
        "site file: check that this is correct"
    )
    return state


@contextmanager
def _writing(path: Path, system: System) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CsrunError(
            f"{path}: the state of {system.name} cannot be written: {error.strerror}; free some "
            "space or fix its permissions, and repeat the command"
        ) from error


@contextmanager
def _kept_as(aside: Path, path: Path) -> Iterator[None]:
    """Rename a file while the context lasts; it is restored if the context fails."""
    path.replace(aside)
    try:
        yield
    except BaseException:
        aside.replace(path)
        raise


def _state_file(site: Site, system: System) -> Path:
    return systems_dir(site) / f"{system.name}.json"
