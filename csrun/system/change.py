"""Execution of an administrator's command on a system, immediately or after the current job."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from csrun.base.errors import CsrunError
from csrun.base.mode import ExecutionMode
from csrun.site import Site, System
from csrun.system import state_files
from csrun.system.lock import holder_of, is_held
from csrun.system.lock_queue import POLL_S
from csrun.system.power import Command, Power, SystemState, apply


class SystemBusyError(CsrunError):
    """A job uses the system."""

    def __init__(self, system: System, command: Command, holder: str) -> None:
        super().__init__(
            f"'{command}' is not possible while {holder} uses {system.name}; wait for it, end it "
            "with 'session cancel', or add --force to hold new jobs and wait"
        )
        self.holder = holder


def change(
    site: Site, system: System, command: Command, mode: ExecutionMode | None = None
) -> SystemState:
    """Execute `command` on a system, and store its new state; CONFIGURE needs the new mode.

    Raises: UsageError if its power state does not allow it; SystemBusyError if a job uses it
    """
    with ExitStack() as stack:
        stack.enter_context(state_files.changing(site, system))
        state = state_files.load_to_change(site, system)
        # The wall clock: another process, also after a reboot, must know when the boot ends.
        now = time.time()
        after = apply(state, command, mode, now + system.boot_s)
        if state.power is Power.ACTIVE:
            path = state_files.lease_file(site, system)
            taken = state_files.try_hold(path, f"{command} (process {os.getpid()})", site.shared)
            if taken is None:
                raise SystemBusyError(system, command, holder_of(path))
            stack.enter_context(taken)
        state_files.save_state(site, system, after)
        return after.at(now)


def drain(
    site: Site, system: System, command: Command, on_wait: Callable[[str], None]
) -> SystemState:
    """Execute `command` as soon as no job uses the system; new jobs cannot get it meanwhile.

    on_wait: called repeatedly with the holder. An exception in it (Ctrl-C), or the end of this
        process, lets jobs use the system again.

    Raises: UsageError if the command is not possible; CsrunError if another process drains the
    system
    """
    with _draining(site, system, command):
        while True:
            try:
                return change(site, system, command)
            except SystemBusyError as busy:
                on_wait(busy.holder)
            time.sleep(POLL_S)


def drainer(site: Site, system: System) -> str | None:
    """Return the process that keeps new jobs from the system, if any; call while `changing` it."""
    path = _drain_file(site, system)
    return holder_of(path) if is_held(path) else None


@contextmanager
def _draining(site: Site, system: System, command: Command) -> Iterator[None]:
    path = _drain_file(site, system)
    with state_files.changing(site, system):
        held = state_files.try_hold(path, f"{command} --force (process {os.getpid()})", site.shared)
    if held is None:
        raise CsrunError(
            f"{holder_of(path)} is already waiting for {system.name}; wait for it or end it"
        )
    with held:
        yield


def _drain_file(site: Site, system: System) -> Path:
    return state_files.systems_dir(site) / f"{system.name}.drain.lock"
