"""A params file to a checked struct."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from csrun.errors import UsageError
from csrun.site.explain import explain, explain_yaml, unknown_key

P = TypeVar("P", bound=msgspec.Struct)


def load(schema: type[P], path: Path, overrides: Mapping[str, Any] | None = None) -> P:
    """Read a params file; `overrides` are values of its `runconfig` section that beat the file's.

    Raises: UsageError with file, key, rule and value when something is missing or wrong.
    """
    try:
        raw = yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: {explain_yaml(error)}") from error
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: must be a mapping of sections, got {_kind(raw)}")
    if overrides and isinstance(section := raw.setdefault("runconfig", {}), dict):
        section.update(overrides)
    if unknown := unknown_key(raw, schema):
        raise UsageError(f"{path}: {unknown}")
    try:
        return msgspec.convert(raw, schema)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {explain(error, raw)}") from error


def _kind(raw: Any) -> str:
    return "an empty file" if raw is None else type(raw).__name__
