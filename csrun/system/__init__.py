"""The CS system as its administrator sees it: power state, execution mode, lease."""

from csrun.system.find import DEFAULT_PORT, find, find_for_compile
from csrun.system.lease import Lease, acquire
from csrun.system.lock import FileLock, holder_of, lock, try_lock
from csrun.system.state import Command, Power, SystemState, apply, load_state, save_state
from csrun.system.waiting import WaitingLine, wait_in_line

__all__ = [
    "DEFAULT_PORT",
    "Command",
    "FileLock",
    "Lease",
    "Power",
    "SystemState",
    "WaitingLine",
    "acquire",
    "apply",
    "find",
    "find_for_compile",
    "holder_of",
    "load_state",
    "lock",
    "save_state",
    "try_lock",
    "wait_in_line",
]
