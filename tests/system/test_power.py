"""Power and mode of a system: permitted commands, and state that outlives a process."""

import errno
import logging
import os
import time

import pytest

from csrun.base.errors import CsrunError, UsageError
from csrun.base.mode import ExecutionMode
from csrun.context import site_state_dir
from csrun.site import load
from csrun.system import Command, Power, SystemState, apply, load_state, save_state

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
SITE = load("local")
SYSTEM = SITE.systems[0]

ALLOWED = [
    (Power.ACTIVE, Command.STANDBY, Power.STANDBY),
    (Power.ACTIVE, Command.REBOOT, Power.BOOTING),
    (Power.STANDBY, Command.ACTIVATE, Power.BOOTING),
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


def test_a_mode_is_configured_in_standby_and_booted_into() -> None:
    state = apply(SystemState(Power.ACTIVE, PIPELINED), Command.STANDBY)
    state = apply(state, Command.CONFIGURE, STREAMING)
    state = apply(state, Command.ACTIVATE, boot_ends=70.0)
    assert state.at(69.9) == state == SystemState(Power.BOOTING, STREAMING, 70.0)
    assert state.at(70.0) == SystemState(Power.ACTIVE, STREAMING)


@pytest.mark.usefixtures("state")
def test_a_state_is_stored_and_until_then_the_site_files() -> None:
    assert load_state(SITE, SYSTEM) == SystemState(Power.ACTIVE, SYSTEM.mode)
    save_state(SITE, SYSTEM, SystemState(Power.STANDBY, STREAMING))
    assert load_state(SITE, SYSTEM) == SystemState(Power.STANDBY, STREAMING)
    assert load_state(SITE, SITE.systems[1]).power is Power.ACTIVE


@pytest.mark.usefixtures("state")
def test_a_boot_goes_on_without_any_process() -> None:
    booting = SystemState(Power.BOOTING, STREAMING, time.time() + 1000)
    save_state(SITE, SYSTEM, booting)
    assert load_state(SITE, SYSTEM) == booting
    save_state(SITE, SYSTEM, SystemState(Power.BOOTING, STREAMING, time.time() - 1))
    assert load_state(SITE, SYSTEM) == SystemState(Power.ACTIVE, STREAMING)


DAMAGES = [
    b"",
    b'{"power":"STANDBY","mode":"WEIGHT_STR',
    b"\xff\x00" * 40,
    b'{"power":"OFF"}',
    b'{"power":"\xff","mode":"PIPELINED"}',
    b"[]",
]


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("content", DAMAGES)
def test_a_damaged_state_is_named_kept_aside_and_rebuilt(
    content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    save_state(SITE, SYSTEM, SystemState(Power.STANDBY, STREAMING))
    path = site_state_dir("local") / "systems" / "cs2-01.json"
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING, "csrun"):
        assert load_state(SITE, SYSTEM) == SystemState(Power.ACTIVE, SYSTEM.mode)
        assert load_state(SITE, SYSTEM) == SystemState(Power.ACTIVE, SYSTEM.mode)
    (kept,) = path.parent.glob("cs2-01.json.damaged-*")
    assert kept.read_bytes() == content
    (warning,) = caplog.messages
    assert str(path) in warning
    assert kept.name in warning
    save_state(SITE, SYSTEM, SystemState(Power.STANDBY, STREAMING))
    assert load_state(SITE, SYSTEM).power is Power.STANDBY


@pytest.mark.usefixtures("state")
def test_a_damaged_state_that_cannot_be_rebuilt_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    save_state(SITE, SYSTEM, SystemState(Power.STANDBY, STREAMING))
    path = site_state_dir("local") / "systems" / "cs2-01.json"
    path.write_bytes(b"{")
    with monkeypatch.context() as full, pytest.raises(CsrunError, match="No space left on device"):
        full.setattr("csrun.base.stored.write_atomic", a_full_disk)
        load_state(SITE, SYSTEM)
    assert path.read_bytes() == b"{"
    assert not list(path.parent.glob("*.damaged-*"))


def a_full_disk(*arguments: object, **options: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
