"""A params file to a checked struct."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from csrun.base import plain_yaml, typed_yaml
from csrun.base.errors import UsageError

P = TypeVar("P", bound=msgspec.Struct)


def load(schema: type[P], path: Path, overrides: Mapping[str, Any] | None = None) -> P:
    """Read a params file; `overrides` are values of its `runconfig` section that beat the file's.

    Raises: UsageError with file, key, rule and value when something is missing or wrong.
    """
    raw = plain_yaml.read(path)
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: must be a mapping of sections, got {_kind(raw)}")
    if overrides and isinstance(section := raw.setdefault("runconfig", {}), dict):
        section.update(overrides)
    return typed_yaml.convert(raw, schema, path)


def _kind(raw: Any) -> str:
    names = {type(None): "an empty file", list: "a list"}
    return names.get(type(raw), "a single value")
