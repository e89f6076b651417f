"""A run's command, and a second run of it in another model_dir, in which values are recorded."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from csrun.base.run_command import RunCommand
from csrun.context.environment import adopt

_COMMAND = "CSRUN_COMMAND"  # of a launcher: its own command line
_RERUN = "CSRUN_RERUN"
_BEFORE_ARGUMENTS = 3  # words of a launcher's command: python -m MODULE


class Rerun(msgspec.Struct, frozen=True):
    """Second run of a script, in which this differs from what the script says.

    model_dir: a folder of its own. record_steps: the first and the last step in which values are
    recorded. resumes: whether it starts from a checkpoint in model_dir. against_torch: PyTorch
    computes the recorded steps, too.
    """

    model_dir: str
    record_steps: tuple[int, int]
    resumes: bool
    against_torch: bool = False

    def checkpoint_path(self, asked: Path | None) -> Path | None:
        """The checkpoint that a training is to start from, None for the newest in model_dir."""
        return None if self.resumes else asked

    def variables(self) -> dict[str, str]:
        """Environment variables of the process that runs it."""
        return {_RERUN: msgspec.json.encode(self).decode()}


def rerun() -> Rerun | None:
    """Return what differs in this process, if it runs something again."""
    text = os.environ.get(_RERUN)
    return msgspec.json.decode(text, type=Rerun) if text else None


def keep_command(module: str) -> None:
    """Have the tasks of this launcher know its command; module: that runs it."""
    with suppress(FileNotFoundError):  # the folder is gone, of which the launcher tells
        _keep(RunCommand((sys.executable, "-m", module, *sys.argv[1:]), str(Path.cwd())))


def keep_arguments(arguments: Sequence[str]) -> None:
    """Have the tasks know the launcher's command with other arguments, if they know it."""
    if (command := own_command(is_task=True)) is not None:
        _keep(RunCommand((*command.words[:_BEFORE_ARGUMENTS], *arguments), command.directory))


def _keep(command: RunCommand) -> None:
    adopt({_COMMAND: msgspec.json.encode(command).decode()})


def own_command(is_task: bool) -> RunCommand | None:
    """Return the command of the run in this process: of a job's task its launcher's, if known."""
    if text := os.environ.get(_COMMAND):
        return msgspec.json.decode(text, type=RunCommand)
    if is_task:
        return None
    return RunCommand((sys.executable, *sys.orig_argv[1:]), str(Path.cwd()))
