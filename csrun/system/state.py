"""Power state and execution mode of a CS system, and how they may change."""

from enum import StrEnum
from pathlib import Path

import msgspec

from csrun.context import site_state_dir
from csrun.errors import CsrunError, UsageError
from csrun.files import write_whole
from csrun.mode import ExecutionMode
from csrun.site import Site, System


class Power(StrEnum):
    """Whether a system takes jobs (ACTIVE) or is being configured (STANDBY)."""

    ACTIVE = "ACTIVE"
    STANDBY = "STANDBY"


class Command(StrEnum):
    """What an administrator does to a system."""

    STANDBY = "system standby"
    ACTIVATE = "system activate"
    CONFIGURE = "config execmode setup"


class SystemState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of a system outlives every process: its power state and its execution mode."""

    power: Power
    mode: ExecutionMode


TRANSITIONS: dict[tuple[Power, Command], Power] = {
    (Power.ACTIVE, Command.STANDBY): Power.STANDBY,
    (Power.STANDBY, Command.ACTIVATE): Power.ACTIVE,
    (Power.STANDBY, Command.CONFIGURE): Power.STANDBY,
}


def apply(state: SystemState, command: Command, mode: ExecutionMode | None = None) -> SystemState:
    """The state after `command`; CONFIGURE takes the new mode.

    Raises: UsageError when the power state does not allow the command
    """
    power = TRANSITIONS.get((state.power, command))
    if power is None:
        allowed = ", ".join(f"'{c}'" for p, c in TRANSITIONS if p is state.power)
        raise UsageError(
            f"'{command}' is not possible while the system is {state.power}; possible: {allowed}"
        )
    return SystemState(power, mode or state.mode)


def load_state(site: Site, system: System) -> SystemState:
    """The stored state; a system that nobody has configured is ACTIVE in its site file's mode.

    Raises: CsrunError when the stored file is damaged
    """
    path = _state_file(site, system)
    try:
        return msgspec.json.decode(path.read_bytes(), type=SystemState)
    except FileNotFoundError:
        return SystemState(Power.ACTIVE, system.mode)
    except msgspec.DecodeError as error:
        raise CsrunError(
            f"{path}: the stored state of {system.name} is damaged: {error}; remove the file to "
            f"go back to {Power.ACTIVE} in {system.mode}"
        ) from error


def save_state(site: Site, system: System, state: SystemState) -> None:
    """Store the state: whole or not at all, and on disk when this returns."""
    path = _state_file(site, system)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, msgspec.json.encode(state))


def systems_dir(site: Site) -> Path:
    """The folder in which a site's systems keep state and leases."""
    return site_state_dir(site.name) / "systems"


def _state_file(site: Site, system: System) -> Path:
    return systems_dir(site) / f"{system.name}.json"
