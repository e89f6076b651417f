"""Common behaviour of all console commands: --version, and Ctrl-C at any moment."""

import signal
import subprocess
import sys

import pytest

from csrun.base.version import VERSION

COMMANDS = (
    *("cs", "cs_input_analyzer", "csctl", "csrun", "csrun_cpu", "csrun_wse"),
    *("python_pt", "python_ws"),
)
ENTER = """
import os, signal, sys
from csrun.cli import entry

class CtrlC:
    def find_spec(self, name, path=None, target=None):
        if name == sys.argv[1]:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, CtrlC())
getattr(entry, sys.argv[2])()
"""
MOMENTS = [
    ("csrun.cli.csrun_wse", "csrun_wse"),
    ("click", "csrun_wse"),
    ("click", "csrun_cpu"),
    ("csrun.launch", "csrun_wse"),  # when the command has begun
    ("csrun.launch.cpu_command", "csrun_cpu"),
    ("csrun.launch.cpu_command", "cs_input_analyzer"),
    ("msgspec", "python_pt"),
    ("msgspec", "python_ws"),
]


def entered(module: str, command: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Command that receives SIGINT just before it imports a module."""
    return subprocess.run(
        [sys.executable, "-c", ENTER, module, command, *arguments], capture_output=True, text=True
    )


@pytest.mark.parametrize(("module", "command"), MOMENTS)
def test_ctrl_c_during_imports_is_130_without_a_traceback(module: str, command: str) -> None:
    done = entered(module, command, "true")
    assert done.returncode == 128 + signal.SIGINT
    assert "Traceback" not in done.stderr
    assert len(done.stderr.strip().splitlines()) <= 1


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_a_version(command: str) -> None:
    start = f"import sys; from csrun.cli import entry; sys.argv[0] = 'it'; entry.{command}()"
    done = subprocess.run(
        [sys.executable, "-c", start, "--version"], capture_output=True, text=True, check=True
    )
    name = command.replace("python_", "python-")
    assert done.stdout.split(",")[0].strip() == f"{name} {VERSION}"
