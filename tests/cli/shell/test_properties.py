"""Random sequences of commands and jobs, against a small model of a system."""

import io
import json
import os
import tempfile
from contextlib import ExitStack, redirect_stdout
from unittest.mock import patch

import click
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from csrun.base.errors import CsrunError
from csrun.base.mode import ExecutionMode
from csrun.cli.shell import LinePrompter, Shell, run_command
from csrun.context.environment import LoginRole
from csrun.site import load
from csrun.system import Lease, acquire, load_state

PIPELINED, STREAMING = (str(mode) for mode in ExecutionMode)
AT_ONCE = load("local")
#: Its second system never ends its boot.
SITE = msgspec.structs.replace(
    AT_ONCE,
    systems=(AT_ONCE.systems[0], msgspec.structs.replace(AT_ONCE.systems[1], boot_s=1e6)),
)
NAMES = [system.name for system in SITE.systems]

COMMANDS = [
    "system standby --yes",
    "system standby",  # answered by no
    "system activate --no-wait",
    "system reboot --yes --no-wait",
    f"config execmode setup --mode {PIPELINED}",
    f"config execmode setup --mode {STREAMING}",
    "config execmode setup --mode FAST",
    "config execmode show",
    "system status",
    "session list",
    "session cancel 99",
    "telemetry --once",
    "system",
    "no such thing",
]
STEPS = st.one_of(
    st.tuples(st.sampled_from(["admin", "user"]), st.sampled_from(COMMANDS)),
    st.tuples(st.just("job"), st.sampled_from([PIPELINED, STREAMING, "ends"])),
)
SEQUENCES = st.lists(st.tuples(st.integers(0, 1), STEPS), max_size=12)


class Model:
    """State of a system, according to the manual."""

    def __init__(self, index: int) -> None:
        self.power, self.mode = "ACTIVE", [PIPELINED, STREAMING][index]
        self.after_boot = ["ACTIVE", "BOOTING"][index]
        self.has_job = False

    def does(self, who: str, command: str) -> bool:
        """Apply a command; return False if it must be refused."""
        looks = command in ("config execmode show", "system status", "session list")
        if looks or command == "telemetry --once":
            return True
        if who == "user" or self.has_job:
            return False
        boots = {"ACTIVE": "system reboot", "STANDBY": "system activate"}.get(self.power, "-")
        if command.startswith(boots):
            self.power = self.after_boot
        elif self.power == "ACTIVE" and command == "system standby --yes":
            self.power = "STANDBY"
        elif self.power == "STANDBY" and command.endswith((PIPELINED, STREAMING)):
            self.mode = command.split()[-1]
        else:
            return False
        return True


class Real:
    """The same system through the shell, and through a job."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lease: Lease | None = None

    def does(self, who: str, command: str) -> bool:
        prompter = LinePrompter()
        shell = Shell(SITE, SITE.systems[0], LoginRole(who), prompter).on(self.name)
        with redirect_stdout(io.StringIO()), patch("sys.stdin", io.StringIO("no\n")):
            try:
                return run_command(command.split(), shell) == 0
            except (click.ClickException, CsrunError):
                return False

    def status(self) -> dict[str, object]:
        out = io.StringIO()
        shell = Shell(SITE, SITE.systems[0], LoginRole.USER, LinePrompter())
        with redirect_stdout(out):
            run_command(
                ["system", "status", "--system", self.name, "--output-format", "json"], shell
            )
        return json.loads(out.getvalue())

    def take(self, mode: str) -> bool:
        system = SITE.systems[NAMES.index(self.name)]
        try:
            self.lease = acquire(SITE, system, ExecutionMode(mode), "job 5", pytest.fail)
        except CsrunError:
            return False
        return True

    def end_job(self) -> None:
        if self.lease is not None:
            self.lease.release()
        self.lease = None


def follow(real: Real, model: Model, who: str, what: str) -> None:
    if who != "job":
        assert real.does(who, what) == model.does(who, what)
    elif what == "ends":
        real.end_job()
        model.has_job = False
    elif not model.has_job and model.power != "BOOTING":  # a job would wait there
        model.has_job = model.power == "ACTIVE" and model.mode == what
        assert real.take(what) == model.has_job


def check(sequence: list[tuple[int, tuple[str, str]]]) -> None:
    """Run a sequence in its own state folder; system and model agree after each step."""
    reals, models = [Real(name) for name in NAMES], [Model(0), Model(1)]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        stack.enter_context(patch.dict(os.environ, {"CSRUN_STATE_DIR": folder}))
        stack.enter_context(patch("os.fsync"))  # no machine crashes in here
        for real in reals:
            stack.callback(real.end_job)
        for index, (who, what) in sequence:
            follow(reals[index], models[index], who, what)
            for system, model in zip(SITE.systems, models, strict=True):
                state = load_state(SITE, system)
                assert (state.power, state.mode) == (model.power, model.mode)
        for real, model in zip(reals, models, strict=True):
            status = real.status()
            assert (status["power"], status["mode"]) == (model.power, model.mode)
            assert bool(status["holder"]) == model.has_job


@settings(max_examples=100)
@given(sequence=SEQUENCES)
def test_a_hundred_sequences_of_commands(sequence: list[tuple[int, tuple[str, str]]]) -> None:
    check(sequence)


@pytest.mark.slow
@settings(max_examples=300)
@given(sequence=SEQUENCES)
def test_hundreds_of_sequences_of_commands(sequence: list[tuple[int, tuple[str, str]]]) -> None:
    check(sequence)
