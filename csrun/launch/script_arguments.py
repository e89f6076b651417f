"""Early checks of a run.py's command line and params file, before a job waits for nodes.

Only what every schema of csrun.params refuses; the tasks report the rest.
"""

import os
from pathlib import Path

from csrun.base import choice, plain_yaml, typed_yaml
from csrun.base.errors import UsageError
from csrun.base.mode import Mode
from csrun.base.precision_names import OPT_LEVEL
from csrun.base.run_config import Params
from csrun.launch.script_imports import has_run_config, is_run_by_params
from csrun.launch.user_command import UserCommand


def check_arguments(command: UserCommand) -> None:
    """The --mode of a script that csrun.params runs, and the keys of its section `runconfig`.

    Raises: UsageError in the words of a task
    """
    script = command.script
    if script is None or not is_run_by_params(script):
        return
    mode = command.script_mode
    known = [each.value for each in Mode]
    if mode is not None and mode.lower() not in known:
        raise UsageError(
            f"{Path(script).name}: invalid value for '-m' / '--mode': {choice.refusal(mode, known)}"
        )
    path = command.params
    if path is not None and os.path.isfile(path) and has_run_config(script):
        _check_keys(Path(path))


def _check_keys(path: Path) -> None:
    raw = plain_yaml.read(path)
    section = raw.get("runconfig") if isinstance(raw, dict) else None
    if isinstance(section, dict):
        own = {key: value for key, value in section.items() if key != OPT_LEVEL}
        typed_yaml.check_keys({"runconfig": own}, Params, path)
