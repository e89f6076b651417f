"""State of a CS system as its administrator sees it: power state, execution mode, lease."""

from csrun.system.change import SystemBusyError, change, drain
from csrun.system.find import (
    choose_compatible,
    compatible_systems,
    find,
    find_for_compile,
    named,
    systems_in_mode,
    users_of,
)
from csrun.system.lease import Lease, acquire, acquire_all
from csrun.system.lock import (
    FileLock,
    holder_of,
    is_held,
    lock,
    lock_errors,
    try_lock,
)
from csrun.system.lock_queue import TicketQueue, wait_in_queue
from csrun.system.power import Command, Power, SystemState, apply
from csrun.system.state_files import load_state, make_site_folders, save_state

__all__ = [
    "Command",
    "FileLock",
    "Lease",
    "Power",
    "SystemBusyError",
    "SystemState",
    "TicketQueue",
    "acquire",
    "acquire_all",
    "apply",
    "change",
    "choose_compatible",
    "compatible_systems",
    "drain",
    "find",
    "find_for_compile",
    "holder_of",
    "is_held",
    "load_state",
    "lock",
    "lock_errors",
    "make_site_folders",
    "named",
    "save_state",
    "systems_in_mode",
    "try_lock",
    "users_of",
    "wait_in_queue",
]
