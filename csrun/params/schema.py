"""Params files checked and completed without a run: by a script's own schema, or by runconfig's."""

import runpy
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from csrun.base import plain_yaml, typed_yaml
from csrun.base.errors import UsageError
from csrun.base.run_config import Params
from csrun.params.command_line import load, parse
from csrun.params.entry_point import SchemaFound, schema_requested


def schema_of(script: Path) -> type[msgspec.Struct]:
    """Schema of a script's params: the script is executed up to its call of `csrun.params.run`.

    Raises: UsageError for a script that does not call it; what the script raises before
    """
    schema: type[msgspec.Struct] = _params_of(script).schema
    return schema


def model_dirs_of(script: Path, command_lines: Iterable[Sequence[str]]) -> list[str | None]:
    """Model_dirs that a script would use with these command lines; None without such a param.

    Raises: UsageError as `schema_of`, and for a command line that the script would refuse
    """
    found = _params_of(script)
    with _as_script(script):
        parsed = [parse(found.schema, found.default_params, words) for words in command_lines]
    configs = [getattr(each.params, "runconfig", None) for each in parsed]
    return [getattr(config, "model_dir", None) for config in configs]


def _params_of(script: Path) -> SchemaFound:
    if not script.is_file():
        raise UsageError(f"--script {script}: no such file")
    try:
        with schema_requested(), _as_script(script):
            runpy.run_path(str(script), run_name="__main__")
    except SchemaFound as found:
        return found
    except SystemExit as error:
        raise UsageError(
            f"--script {script}: ended with {error.code} before csrun.params.run"
        ) from error
    raise unknown_params(script)


def unknown_params(script: Path) -> UsageError:
    """Return the refusal of a script without csrun.params."""
    return UsageError(
        f"--script {script}: does not call csrun.params.run, so its params are unknown"
    )


@contextmanager
def _as_script(script: Path) -> Iterator[None]:
    """Arguments and module path as `python SCRIPT` has them."""
    arguments, path = sys.argv[:], sys.path[:]
    sys.argv[:] = [str(script)]
    sys.path.insert(0, str(script.resolve().parent))
    try:
        yield
    finally:
        sys.argv[:], sys.path[:] = arguments, path


def completed(file: Path, schema: type[msgspec.Struct] | None) -> dict[str, Any]:
    """All params of a file, with defaults.

    schema: None checks and completes the section `runconfig`, and leaves the others as they are.

    Raises: UsageError for an unknown key, with a guess at what was meant, and for a wrong value
    """
    if schema is not None:
        return _plain(load(schema, file))
    raw = plain_yaml.read(file)
    if not isinstance(raw, dict):
        raise UsageError(f"{file}: must be a mapping of sections")
    own = {"runconfig": raw.get("runconfig") or {}}
    return {**raw, **_plain(typed_yaml.convert(own, Params, file))}


def _plain(params: Any) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(params, enc_hook=str)
    return found
