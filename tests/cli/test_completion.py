"""Shell completion of csrun's commands."""

import subprocess
import sys

import pytest

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


def test_a_command_completes_its_options() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "csrun.cli.csrun_wse"],
        env={
            "_CSRUN_WSE_COMPLETE": "bash_complete",
            "COMP_WORDS": "csrun_wse --total",
            "COMP_CWORD": "1",
        },
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == "plain,--total-nodes\n"


def test_bash_reads_the_script() -> None:
    script = subprocess.run(
        [sys.executable, "-m", "csrun.cli.csrun", "completion", "bash"],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    loaded = f"{script}\ncomplete -p csrun_wse"
    done = subprocess.run(["bash", "-c", loaded], capture_output=True, text=True, check=True)
    assert "-F _csrun_wse_completion csrun_wse" in done.stdout
