"""Values of single keys of a params file, from a command line: `optimizer.learning_rate=0.1`."""

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from csrun.base import plain_yaml
from csrun.base.errors import UsageError

_WORD = re.compile(r"(\w+(?:\.\w+)*)=(.+)", re.DOTALL)
_OPENING, _CLOSING = "[{", "]}"


class Setting(msgspec.Struct, frozen=True):
    """A key of the params by its sections, and its value as a params file would have it."""

    key: str
    value: Any


def split(word: str) -> tuple[str, str]:
    """Split `KEY=VALUE` into the key and the text of the value.

    Raises: UsageError for text of another form
    """
    if (found := _WORD.fullmatch(word)) is None:
        raise UsageError(f"--set: must be KEY=VALUE, as optimizer.learning_rate=0.1, got {word!r}")
    return found[1], found[2]


def parse(word: str) -> Setting:
    """Parse a setting. The value is YAML: `0.1` is a number and `[64, 64]` a list.

    Raises: UsageError for text of another form
    """
    key, text = split(word)
    return Setting(key, plain_yaml.parse(text.encode(errors="surrogateescape"), f"--set {key}"))


def split_values(text: str) -> list[str]:
    """Split text at commas outside of brackets and quotes."""
    values, depth, quote = [""], 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        else:
            depth += (character in _OPENING) - (character in _CLOSING)
        if character == "," and not quote and not depth:
            values.append("")
        else:
            values[-1] += character
    return values


def apply(params: dict[str, Any], settings: Iterable[Setting]) -> None:
    """Set keys of nested params; missing sections are added.

    Raises: UsageError if a part of a key is a value instead of a section
    """
    for setting in settings:
        *sections, last = setting.key.split(".")
        place = params
        for at, name in enumerate(sections, 1):
            if place.get(name) is None:
                place[name] = {}
            place = place[name]
            if not isinstance(place, dict):
                raise UsageError(
                    f"--set {setting.key}: {'.'.join(sections[:at])} is a value, not a section"
                )
        place[last] = setting.value
