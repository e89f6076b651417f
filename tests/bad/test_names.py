"""Unknown names and words for every argument: one readable line."""

import os
from pathlib import Path

import pytest

from csrun.base import stored
from csrun.base.errors import UsageError
from csrun.cli.csctl import csctl
from csrun.cli.csrun_cpu import csrun_cpu
from csrun.cli.csrun_wse import csrun_wse
from csrun.cli.frame import run
from csrun.context.launcher_link import SpawnWafer
from csrun.launch.command_checks import check_command, check_program
from csrun.launch.user_command import UserCommand

LONG, ENDLESS = "x" * 300, "y" * 100_000
NO_TEXT = "a\udcffb"  # as Python has an argument of bytes that are no UTF-8

LINES = [
    (csrun_cpu, [LONG]),
    (csrun_cpu, [f"{LONG}/x"]),
    (csrun_cpu, ["loop/x"]),
    (csrun_cpu, [ENDLESS]),
    (csrun_cpu, ["true", NO_TEXT]),
    (csrun_cpu, ["--site", LONG, "true"]),
    (csrun_cpu, ["--site", ENDLESS, "true"]),
    (csrun_cpu, ["--site", "loop", "true"]),
    (csrun_cpu, ["--job-name", NO_TEXT, "true"]),
    (csrun_cpu, ["--time-limit", ENDLESS, "true"]),
    (csrun_cpu, ["--output", LONG, "true"]),
    (csrun_cpu, ["--output", f"{LONG}/x", "true"]),
    (csrun_cpu, ["--mount-dirs", LONG, "true"]),
    (csrun_cpu, [f"--{ENDLESS}"]),
    (csrun_wse, ["python", LONG]),
    (csrun_wse, ["loop/python", "run.py"]),
    (csrun_wse, ["python", "run.py", "--params", f"{LONG}.yaml"]),
    (csrun_wse, ["python", "run.py", "--params", "pipe"]),
    (csrun_wse, ["--total-nodes", "9" * 5000, "python", "run.py"]),
    (csctl, ["get", "job", "9" * 5000]),
    (csctl, ["get", "job", "9" * 500]),
    (csctl, ["get", ENDLESS]),
    (csctl, ["logs", ENDLESS]),
]


@pytest.mark.usefixtures("state", "own_folder")
@pytest.mark.parametrize(("command", "words"), LINES, ids=lambda value: str(value)[:40])
def test_a_line_is_refused_in_one(command, words, capfd: pytest.CaptureFixture[str]) -> None:
    Path("loop").symlink_to("loop")
    Path("run.py").touch()
    os.mkfifo("pipe")
    assert run(command, words) == 2
    lines = capfd.readouterr().err.splitlines()
    (said,) = (line for line in lines if not line.startswith("srun: "))
    assert said.startswith(f"{command.name}: error: ")
    assert len(said) < 1000


def test_what_cannot_be_kept_as_text_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^'a\\udcffb': must be valid UTF-8"):
        stored.text_of(SpawnWafer(NO_TEXT, 1))


@pytest.mark.parametrize("word", [LONG, f"{LONG}/x", "a\0b", ENDLESS])
def test_each_look_at_a_name_is_one_line(word: str) -> None:
    for look in (check_program, lambda name: check_command(UserCommand(("python", name)))):
        with pytest.raises(UsageError):
            look(word)
