"""Shell completion of csrun's commands."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import Sandbox

from csrun.cli import csrun, frame
from csrun.cli.completion import COMMANDS, SHELLS


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_gets_a_script_for_every_command(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert frame.run(csrun.csrun, ["completion", shell]) == 0
    script = capsys.readouterr().out
    for command in COMMANDS:
        assert f"_{command.upper()}_COMPLETE={shell}_complete" in script


def test_a_shell_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert frame.run(csrun.csrun, ["completion"]) == 2
    message = "Missing argument 'SHELL'. Choose from bash, zsh, fish; usage: csrun completion"
    assert message in capsys.readouterr().err


def completed(command: str, *words: str, **variables: str) -> list[str]:
    """Completions that bash offers for the last word of a command."""
    done = subprocess.run(
        [sys.executable, "-m", f"csrun.cli.{command}"],
        env={
            f"_{command.upper()}_COMPLETE": "bash_complete",
            "COMP_WORDS": shlex.join([command, *words]),
            "COMP_CWORD": str(len(words)),
            **variables,
        },
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return [line.removeprefix("plain,") for line in done.stdout.split()]


def test_a_command_completes_its_options_and_words() -> None:
    assert completed("csrun_wse", "--total") == ["--total-nodes"]
    assert completed("csrun", "init", "fc") == ["fc_mnist"]
    assert completed("csrun", "compare", "a", "mo") == ["dir,mo"]
    assert completed("csrun_wse", "python-w") == ["file,python-w", "python-ws"]
    assert completed("csrun_wse", "--total-nodes", "4", "python-ws", "ru") == ["file,ru"]
    assert completed("csrun", "estimate", "--site", "str") == ["file,str", "streaming-8"]


def test_csctl_completes_the_ids_of_jobs(tmp_path: Path) -> None:
    place = Sandbox(tmp_path)
    assert place.run("--total-nodes", "1", "true").returncode == 0
    variables = {"CSRUN_STATE_DIR": str(tmp_path / "state")}
    (tmp_path / "state" / "local" / "arrays").mkdir()
    (tmp_path / "state" / "local" / "arrays" / "1.json").touch()
    nouns = (["get", "job"], ["logs"], ["cancel", "job"], ["cancel"], ["get", "array"])
    for words in nouns:
        assert completed("csctl", *words, "1", **variables) == ["1"]
        assert completed("csctl", *words, "2", **variables) == []
    assert completed("csctl", "--site", "unknown", "logs", "1", **variables) == []


def test_bash_reads_the_script() -> None:
    script = subprocess.run(
        [sys.executable, "-m", "csrun.cli.csrun", "completion", "bash"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    loaded = f"{script}\ncomplete -p csrun_wse"
    done = subprocess.run(["bash", "-c", loaded], capture_output=True, text=True, check=True)
    assert "-F _csrun_wse_completion csrun_wse" in done.stdout
