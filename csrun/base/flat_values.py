"""Nested plain values flattened to a mapping by path, and their differences."""

from collections.abc import Mapping
from typing import Any

import msgspec

MISSING = "(not set)"


class Difference(msgspec.Struct, frozen=True):
    """A key whose values differ; None where one side has none."""

    key: str
    first: str | None
    second: str | None


def flattened(value: Any, path: str = "") -> dict[str, Any]:
    """Flatten mappings and lists to their leaves by path, e.g. `model.hidden_sizes[0]`.

    An empty mapping or list is a leaf.
    """
    if isinstance(value, dict) and value:
        items = [(f"{path}.{key}" if path else str(key), each) for key, each in value.items()]
    elif isinstance(value, list | tuple) and value:
        items = [(f"{path}[{index}]", each) for index, each in enumerate(value)]
    else:
        return {path: value}
    found: dict[str, Any] = {}
    for below, each in items:
        found |= flattened(each, below)
    return found


def differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[Difference]:
    """Return the keys whose values differ, in the order of the first mapping, then of the
    second.
    """
    keys = dict.fromkeys([*first, *second])
    return [
        Difference(key, _text(first, key), _text(second, key))
        for key in keys
        if key not in first or key not in second or not _is_same(first[key], second[key])
    ]


def equal_values(first: Mapping[str, Any], second: Mapping[str, Any]) -> dict[str, str]:
    """Return the values that are equal in both mappings, as text by key."""
    return {
        key: str(value)
        for key, value in first.items()
        if key in second and _is_same(value, second[key])
    }


def _is_same(first: Any, second: Any) -> bool:
    # 1, 1.0 and True are equal in Python, but are different text in a file
    return bool(first == second) and isinstance(first, bool) is isinstance(second, bool)


def _text(values: Mapping[str, Any], key: str) -> str | None:
    return str(values[key]) if key in values else None
