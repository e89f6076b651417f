"""Power state and execution mode of a CS system, and their transitions; no I/O."""

from enum import StrEnum

import msgspec

from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode


class Power(StrEnum):
    """Power state: accepts jobs (ACTIVE), can be configured (STANDBY), or boots (BOOTING)."""

    ACTIVE = "ACTIVE"
    STANDBY = "STANDBY"
    BOOTING = "BOOTING"


class Command(StrEnum):
    """Command of an administrator on a system."""

    STANDBY = "system standby"
    ACTIVATE = "system activate"
    REBOOT = "system reboot"
    CONFIGURE = "config execmode setup"


class SystemState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Stored state of a system: its power state and its execution mode.

    boot_ends: time at which a BOOTING system becomes ACTIVE, in seconds since the epoch. No process
        performs that change: a later reader computes the state at its own time.
    """

    power: Power
    mode: ExecutionMode
    boot_ends: float = 0.0

    def at(self, now: float) -> "SystemState":
        """Return this state as of the time `now`."""
        if self.power is Power.BOOTING and now >= self.boot_ends:
            return SystemState(Power.ACTIVE, self.mode)
        return self


TRANSITIONS: dict[tuple[Power, Command], Power] = {
    (Power.ACTIVE, Command.STANDBY): Power.STANDBY,
    (Power.ACTIVE, Command.REBOOT): Power.BOOTING,
    (Power.STANDBY, Command.ACTIVATE): Power.BOOTING,
    (Power.STANDBY, Command.CONFIGURE): Power.STANDBY,
}  # BOOTING becomes ACTIVE with time, see `SystemState.at`


def apply(
    state: SystemState,
    command: Command,
    mode: ExecutionMode | None = None,
    boot_ends: float = 0.0,
) -> SystemState:
    """Return the state after `command`; CONFIGURE needs the new mode, a boot its end time.

    Raises: UsageError if the power state does not allow the command
    """
    power = TRANSITIONS.get((state.power, command))
    if power is None:
        raise UsageError(
            f"'{command}' is not possible while the system is {state.power}; "
            f"{_possible(state.power)}"
        )
    return SystemState(power, mode or state.mode, boot_ends if power is Power.BOOTING else 0.0)


def _possible(power: Power) -> str:
    allowed = ", ".join(f"'{c}'" for p, c in TRANSITIONS if p is power)
    return f"possible: {allowed}" if allowed else f"wait until it is {Power.ACTIVE}"
