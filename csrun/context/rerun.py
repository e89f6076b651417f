"""Command of a run, and its second run with recorded values in another model_dir."""

import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from csrun.base.run_command import RunCommand
from csrun.context.environment import adopt

_COMMAND = "CSRUN_COMMAND"  # command line of the launcher
_RERUN = "CSRUN_RERUN"
_BEFORE_ARGUMENTS = 3  # start of a launcher's command: python -m MODULE


class Rerun(msgspec.Struct, frozen=True):
    """Second run of a script, with these changes to what the script sets.

    model_dir: separate folder.
    record_steps: first and last step whose values are recorded.
    resumes: start from a checkpoint in model_dir.
    against_torch: PyTorch also computes the recorded steps.
    """

    model_dir: str
    record_steps: tuple[int, int]
    resumes: bool
    against_torch: bool = False

    def checkpoint_path(self, asked: Path | None) -> Path | None:
        """Checkpoint from which a training starts, None for the newest in model_dir."""
        return None if self.resumes else asked

    def variables(self) -> dict[str, str]:
        """Environment variables of the second run's process."""
        return {_RERUN: msgspec.json.encode(self).decode()}


def rerun() -> Rerun | None:
    """Return the changes if this process is a second run."""
    text = os.environ.get(_RERUN)
    return msgspec.json.decode(text, type=Rerun) if text else None


def export_command(module: str) -> None:
    """Pass this launcher's command to its tasks; module: Python module of the launcher."""
    with suppress(FileNotFoundError):  # the folder no longer exists; the launcher reports it
        _keep(RunCommand((sys.executable, "-m", module, *sys.argv[1:]), str(Path.cwd())))


def export_arguments(arguments: Sequence[str]) -> None:
    """Pass the launcher's command with other arguments to the tasks, if it is known."""
    if (command := run_command_of_process(is_task=True)) is not None:
        _keep(RunCommand((*command.argv[:_BEFORE_ARGUMENTS], *arguments), command.directory))


def _keep(command: RunCommand) -> None:
    adopt({_COMMAND: msgspec.json.encode(command).decode()})


def run_command_of_process(is_task: bool) -> RunCommand | None:
    """Return the command of the run in this process: of a job's task that of its launcher, if
    known.
    """
    if text := os.environ.get(_COMMAND):
        return msgspec.json.decode(text, type=RunCommand)
    if is_task:
        return None
    return RunCommand((sys.executable, *sys.orig_argv[1:]), str(Path.cwd()))
