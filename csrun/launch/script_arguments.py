"""Early checks of a run.py's command line and params file, before a job waits for nodes.

Only what the source of the script tells: sections of its schema, keys of `runconfig`, options that
a parser of its own declares, and their values. The tasks report the rest.
"""

import os
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from csrun.base import choice, plain_yaml, typed_yaml
from csrun.base.errors import UsageError
from csrun.base.mode import Mode
from csrun.base.params_settings import Setting
from csrun.base.precision_names import OPT_LEVEL
from csrun.base.run_config import Params
from csrun.launch.script_imports import (
    has_run_config,
    parses_arguments_unchanged,
    sections_of,
    uses_csrun_params,
)
from csrun.launch.script_options import check_options
from csrun.launch.user_command import UserCommand

SECTION = "runconfig"
TRANSLATED = (SECTION, "model", "csconfig")  # which may have keys of the original's alone


def check_arguments(command: UserCommand) -> None:
    """Check a script's options, and the keys of its section `runconfig`.

    Raises: UsageError with the same messages as a task
    """
    script = command.script
    if script is None:
        return
    arguments = command.argv[2:]
    if "--help" in arguments:
        return
    if not uses_csrun_params(script):
        check_options(script, arguments)
        return
    mode = command.script_mode
    known = [each.value for each in Mode]
    if mode is not None and mode.lower() not in known:
        raise UsageError(
            f"{Path(script).name}: invalid value for '-m' / '--mode': {choice.refusal(mode, known)}"
        )
    path = command.params
    known_sections, has_keys = sections_of(script), has_run_config(script)
    if path is not None and os.path.isfile(path):
        _check_file(Path(path), known_sections, has_keys)
    if parses_arguments_unchanged(script):
        settings = _parse(Path(script).name, arguments)
        _check_sections((each.key.partition(".")[0] for each in settings), known_sections, "--set")
        if has_keys:
            _check_settings(settings)


def _parse(script: str, arguments: Sequence[str]) -> Sequence[Setting]:
    from csrun.base.run_options import parse_options

    return parse_options(script, arguments).settings


def _check_sections(
    sections: Iterable[str], known: Collection[str] | None, where: Path | str
) -> None:
    for section in sections:
        if known is not None and section not in (*known, *TRANSLATED):
            raise UsageError(f"{where}: {typed_yaml.unknown_key(section, known)}")


def _check_settings(settings: Sequence[Setting]) -> None:
    for setting in settings:
        section, _, key = setting.key.partition(".")
        if section == SECTION and key and "." not in key:
            typed_yaml.check_keys({section: {key: setting.value}}, Params, "--set")


def _check_file(path: Path, known_sections: Collection[str] | None, has_keys: bool) -> None:
    raw = plain_yaml.read(path)
    if not isinstance(raw, dict):
        return
    _check_sections(raw, known_sections, path)
    section = raw.get(SECTION)
    if has_keys and isinstance(section, dict):
        own = {key: value for key, value in section.items() if key != OPT_LEVEL}
        typed_yaml.check_keys({SECTION: own}, Params, path)
