"""The admin shell of the CS systems, `cs>`: one tree of commands, prompted for or given at once."""

from csrun.cli.shell.asking import Asking, LineAsking
from csrun.cli.shell.shell import LeaveShell, Shell
from csrun.cli.shell.tree import run_command

__all__ = ["Asking", "LeaveShell", "LineAsking", "Shell", "run_command"]
