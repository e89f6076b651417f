"""State of a CS system as its administrator sees it: power state, execution mode, lease."""

from csrun.system.change import SystemBusyError, change, drain
from csrun.system.find import (
    alike,
    find,
    find_for_compile,
    in_mode,
    named,
    others_like,
    users_of,
)
from csrun.system.lease import Lease, acquire, acquire_all
from csrun.system.lock import (
    FileLock,
    WaitingLine,
    holder_of,
    is_held,
    lock,
    lock_errors,
    try_lock,
    wait_in_line,
)
from csrun.system.power import Command, Power, SystemState, apply
from csrun.system.state_files import load_state, make_site_folders, save_state

__all__ = [
    "Command",
    "FileLock",
    "Lease",
    "Power",
    "SystemBusyError",
    "SystemState",
    "WaitingLine",
    "acquire",
    "acquire_all",
    "alike",
    "apply",
    "change",
    "drain",
    "find",
    "find_for_compile",
    "holder_of",
    "in_mode",
    "is_held",
    "load_state",
    "lock",
    "lock_errors",
    "make_site_folders",
    "named",
    "others_like",
    "save_state",
    "try_lock",
    "users_of",
    "wait_in_line",
]
