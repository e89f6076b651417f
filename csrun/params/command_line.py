"""Command line of a run.py, as in Cerebras Model Zoo, and its params file."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec

from csrun.base import params_settings, plain_yaml, typed_yaml
from csrun.base.errors import UsageError
from csrun.base.mode import Mode
from csrun.base.params_settings import Setting
from csrun.base.run_options import parse_options
from csrun.params.original_keys import translate_original_keys

P = TypeVar("P", bound=msgspec.Struct)
DefaultParams = Path | Mapping[str, Any] | None


class Arguments(msgspec.Struct, Generic[P], frozen=True):
    """Parsed command line: the mode, and the params with the command line's overrides."""

    mode: Mode
    params: P


def load(
    schema: type[P],
    path: Path,
    overrides: Mapping[str, Any] | None = None,
    settings: Sequence[Setting] = (),
) -> P:
    """Read a params file; `settings` take precedence over its keys, `overrides` over those of its
    `runconfig` section.

    Raises: UsageError with file, key, rule and value when something is missing or wrong.
    """
    return _convert(schema, plain_yaml.read(path), path, overrides, settings)


def _convert(
    schema: type[P],
    raw: Any,
    path: Path,
    overrides: Mapping[str, Any] | None,
    settings: Sequence[Setting],
) -> P:
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: must be a mapping of sections, got {_kind(raw)}")
    params_settings.apply(raw, settings)
    if overrides and isinstance(section := raw.setdefault("runconfig", {}), dict):
        section.update(overrides)
    source = f"{path} with --set" if settings else path
    translate_original_keys(raw, schema, source)
    return typed_yaml.convert(raw, schema, source)


def _kind(raw: Any) -> str:
    names = {type(None): "an empty file", list: "a list"}
    return names.get(type(raw), "a single value")


def parse(schema: type[P], default_params: DefaultParams, argv: Sequence[str]) -> Arguments[P]:
    """Parse a run.py's command line, which takes precedence over the params file.

    default_params: params file, or its content, if there is no --params.

    Raises: UsageError for an unknown option (with a suggestion), conflicting options, options
    without effect in the mode, or a missing or malformed file
    """
    script = Path(sys.argv[0]).name
    path = default_params if isinstance(default_params, Path) else None
    own = default_params if isinstance(default_params, Mapping) else {}
    given = parse_options(script, argv, path)
    if given.params is not None:
        params = load(schema, Path(given.params), given.overrides, given.settings)
        return Arguments(given.mode, params)
    raw = msgspec.to_builtins(own)  # a copy, to which the command line's values are added
    params = _convert(schema, raw, Path(script), given.overrides, given.settings)
    return Arguments(given.mode, params)
