"""Admin shell of the CS systems, `cs>`: one tree of commands, given at a prompt or as arguments."""

from csrun.cli.shell.asking import Asking, LineAsking
from csrun.cli.shell.command_loop import run_command
from csrun.cli.shell.shell import LeaveShell, Shell

__all__ = ["Asking", "LeaveShell", "LineAsking", "Shell", "run_command"]
