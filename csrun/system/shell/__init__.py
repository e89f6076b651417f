"""The admin shell of the CS systems, `cs>`: one tree of commands, prompted for or given at once."""

from csrun.system.shell.asking import Asking, LineAsking
from csrun.system.shell.shell import LeaveShell, Shell
from csrun.system.shell.tree import run_command

__all__ = ["Asking", "LeaveShell", "LineAsking", "Shell", "run_command"]
