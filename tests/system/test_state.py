"""Power and mode of a system: which commands are possible when, and what outlives a process."""

import pytest

from csrun.context import site_state_dir
from csrun.errors import CsrunError, UsageError
from csrun.mode import ExecutionMode
from csrun.site import load
from csrun.system import Command, Power, SystemState, apply, load_state, save_state

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
SITE = load("local")

ALLOWED = [
    (Power.ACTIVE, Command.STANDBY, Power.STANDBY),
    (Power.STANDBY, Command.ACTIVATE, Power.ACTIVE),
    (Power.STANDBY, Command.CONFIGURE, Power.STANDBY),
]


@pytest.mark.parametrize("power", Power)
@pytest.mark.parametrize("command", Command)
def test_transitions(power: Power, command: Command) -> None:
    expected = {(p, c): after for p, c, after in ALLOWED}.get((power, command))
    state = SystemState(power, PIPELINED)
    if expected is None:
        with pytest.raises(UsageError, match=f"while the system is {power}"):
            apply(state, command)
    else:
        assert apply(state, command) == SystemState(expected, PIPELINED)


def test_a_mode_is_configured_in_standby() -> None:
    state = apply(SystemState(Power.ACTIVE, PIPELINED), Command.STANDBY)
    state = apply(state, Command.CONFIGURE, STREAMING)
    assert apply(state, Command.ACTIVATE) == SystemState(Power.ACTIVE, STREAMING)


@pytest.mark.usefixtures("state")
def test_a_state_is_stored_and_until_then_the_site_files() -> None:
    system = SITE.systems[0]
    assert load_state(SITE, system) == SystemState(Power.ACTIVE, system.mode)
    save_state(SITE, system, SystemState(Power.STANDBY, STREAMING))
    assert load_state(SITE, system) == SystemState(Power.STANDBY, STREAMING)
    assert load_state(SITE, SITE.systems[1]).power is Power.ACTIVE


@pytest.mark.usefixtures("state")
def test_a_damaged_state_names_its_file() -> None:
    system = SITE.systems[0]
    save_state(SITE, system, SystemState(Power.STANDBY, STREAMING))
    path = site_state_dir("local") / "systems" / "cs2-01.json"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(CsrunError, match=str(path)):
        load_state(SITE, system)
