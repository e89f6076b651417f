"""Admin shell of the CS systems, `cs>`: one tree of commands, given at a prompt or as arguments."""

from csrun.cli.shell.command_loop import run_command
from csrun.cli.shell.prompts import LinePrompter, Prompter
from csrun.cli.shell.shell import LeaveShell, Shell

__all__ = ["LeaveShell", "LinePrompter", "Prompter", "Shell", "run_command"]
