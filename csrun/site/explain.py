"""What is wrong with a site file: path of the key, rule, value, and a guess at what was meant."""

import difflib
import re
from typing import Any, get_args

import msgspec

_AT = re.compile(r"^(?P<rule>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_LONGEST_VALUE = 80


def unknown_key(raw: Any, kind: type[msgspec.Struct], path: str = "") -> str | None:
    """The first key of `raw` that `kind` has no field for, as a sentence; None: all are known."""
    if not isinstance(raw, dict):
        return None
    fields = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    for key, value in raw.items():
        if key not in fields:
            return f"{_join(path, key)}: unknown key{_suggestion(str(key), list(fields))}"
        if wrong := _unknown_within(value, fields[key], _join(path, key)):
            return wrong
    return None


def explain(error: msgspec.ValidationError, raw: Any) -> str:
    """A validation error as `path: rule, got value`."""
    match = _AT.match(str(error))
    rule, path = (match["rule"], match["path"]) if match else (str(error), None)
    sentence = f"{rule[0].lower()}{rule[1:]}".replace("`", "")
    where = f"{path}: " if path else ""
    if "missing required field" in sentence:
        return where + sentence
    sentence = sentence.partition(", got ")[0]
    return f"{where}{sentence}, got {_shorten(_value_at(raw, path or ''))}"


def _unknown_within(value: Any, kind: Any, path: str) -> str | None:
    struct = _struct_in(kind)
    if struct is None:
        return None
    if isinstance(value, list):
        found = (unknown_key(item, struct, f"{path}[{i}]") for i, item in enumerate(value))
        return next((wrong for wrong in found if wrong), None)
    return unknown_key(value, struct, path)


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return kind
    found = (_struct_in(argument) for argument in get_args(kind))
    return next((struct for struct in found if struct), None)


def _join(path: str, key: object) -> str:
    return f"{path}.{key}" if path else str(key)


def _suggestion(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f"; did you mean {close[0]}?" if close else f"; the known ones are {', '.join(known)}"


def _value_at(raw: Any, path: str) -> Any:
    value = raw
    for token in re.findall(r"[^.\[\]]+", path):
        value = value[int(token)] if isinstance(value, list) else value[token]
    return value


def _shorten(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
