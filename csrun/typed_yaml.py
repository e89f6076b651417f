"""YAML files as typed structs; what is wrong with one is said with the key's path, rule and value.

Like `csrun.errors` this module lies below every room.
"""

import difflib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import yaml

from csrun.errors import UsageError

S = TypeVar("S", bound=msgspec.Struct)

_AT = re.compile(r"^(?P<rule>.*?)(?: - at `\$\.?(?P<path>.*)`)?$", re.DOTALL)
_LONGEST_VALUE = 80

Struct = type[msgspec.Struct]


def read(path: Path) -> Any:
    """The plain values of a YAML file.

    Raises: UsageError when it cannot be read, or is not YAML
    """
    try:
        return yaml.safe_load(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from error
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: {_explain_yaml(error)}") from error


def convert(raw: Any, kind: type[S], path: Path) -> S:
    """Plain values as a struct.

    Raises: UsageError with the file, the path of the key, the rule and the value; for an unknown
    key with a guess at what was meant
    """
    if unknown := _unknown_key(raw, kind):
        raise UsageError(f"{path}: {unknown}")
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {_explain(error, raw)}") from error


def _unknown_key(raw: Any, kind: type[msgspec.Struct], path: str = "") -> str | None:
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


def _explain(error: msgspec.ValidationError, raw: Any) -> str:
    """A validation error as `path: rule, got value`."""
    match = _AT.match(str(error))
    rule, path = (match["rule"], match["path"]) if match else (str(error), None)
    sentence = f"{rule[0].lower()}{rule[1:]}".replace("`", "")
    where = f"{path}: " if path else ""
    if "missing required field" in sentence:
        return where + sentence.removeprefix("object ")
    sentence = sentence.partition(", got ")[0]
    return f"{where}{sentence}, got {_shorten(_value_at(raw, path or ''))}"


def _explain_yaml(error: yaml.YAMLError) -> str:
    """Why a text is not YAML, and where."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: not YAML: {error.problem}"
    return f"not YAML: {' '.join(str(error).split())}"


def _unknown_within(value: Any, kind: Any, path: str) -> str | None:
    structs = list(_structs_in(kind))
    if not structs:
        return None
    if isinstance(value, list):
        found = (_unknown_within(item, kind, f"{path}[{i}]") for i, item in enumerate(value))
        return next((wrong for wrong in found if wrong), None)
    if len(structs) > 1 and isinstance(value, dict):
        return _unknown_choice(value, structs, path)
    return _unknown_key(value, structs[0], path)


def _unknown_choice(value: dict[Any, Any], structs: list[Struct], path: str) -> str | None:
    """What is wrong with a mapping whose kind a key of it tells."""
    tag_field = structs[0].__struct_config__.tag_field or ""
    by_tag = {struct.__struct_config__.tag: struct for struct in structs}
    known = ", ".join(map(str, by_tag))
    if tag_field not in value:
        return f"{path}: missing required field {tag_field}, one of {known}"
    tag = value[tag_field]
    if not isinstance(tag, str) or tag not in by_tag:
        return f"{_join(path, tag_field)}: must be one of {known}, got {tag!r}"
    rest = {key: item for key, item in value.items() if key != tag_field}
    return _unknown_key(rest, by_tag[tag], path)


def _structs_in(kind: Any) -> Iterator[Struct]:
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        yield kind
    for argument in get_args(kind):
        yield from _structs_in(argument)


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
