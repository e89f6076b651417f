"""Conversion of plain values to typed structs; errors name the key's path, rule and value."""

import difflib
import re
from collections.abc import Collection, Iterator
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import inspect
from msgspec.inspect import StructType, Type

from csrun.base.errors import UsageError

S = TypeVar("S", bound=msgspec.Struct)

_AT = re.compile(r"^(?P<rule>.*?)(?: - at (?:`key` in )?`\$\.?(?P<path>.*)`)?$", re.DOTALL)
# in msgspec.Meta(extra=…): message for each value that is not supported yet
NOT_THERE_YET = "not_there_yet"
WORDS = "words"  # in msgspec.Meta(extra=…): description of a valid value
_ANY_KEY = "[...]"  # msgspec's name of a value in a mapping with free keys
_LONGEST_VALUE = 80


def convert(raw: Any, kind: type[S], path: Path | str) -> S:
    """Convert plain values to a struct; `path` names their file or source in messages.

    Raises: UsageError with the file, the path of the key, the rule and the value; for an unknown
    key or choice with a suggestion
    """
    if endless := _not_finite(raw, ""):
        raise UsageError(f"{path}: {endless}")
    root = inspect.type_info(kind)
    check_keys(raw, kind, path)
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        raise UsageError(f"{path}: {_explain(error, raw, root)}") from error


def check_keys(raw: Any, kind: type[S], path: Path | str) -> None:
    """Check that the keys of plain values are fields of a struct; the values are not checked.

    Raises: UsageError as `convert`
    """
    if unknown := _unknown_in(raw, inspect.type_info(kind), ""):
        raise UsageError(f"{path}: {unknown}")


def _not_finite(value: Any, path: str) -> str | None:
    """Return a message about the first number that is NaN or infinite, or None."""
    if isinstance(value, float) and not isfinite(value):
        return f"{path}: must be a finite number, got {value}"
    if not isinstance(value, dict | list):
        return None
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return next(filter(None, (_not_finite(v, _join(path, k)) for k, v in items)), None)


def _unknown_in(value: Any, kind: Type | None, path: str) -> str | None:
    """Return a message about the first key that is not a field of `kind`, or None."""
    if kind is None or not isinstance(value, dict | list):
        return None
    if isinstance(value, dict) and (structs := _structs(kind)):
        struct = _struct_of(structs, value)
        if struct is None:
            return _unknown_choice(value, structs, path)
        known = [*filter(None, [struct.tag_field]), *_fields(struct)]
        for key in value:
            if key not in known:
                return unknown_key(key, known, path)
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = (_unknown_in(v, _below(kind, value, k), _join(path, k)) for k, v in items)
    return next((wrong for wrong in found if wrong), None)


def _unknown_choice(value: dict[Any, Any], structs: list[StructType], path: str) -> str:
    """Return a message about a mapping whose tag field is missing or unknown."""
    tag_field, known = structs[0].tag_field, [str(struct.tag) for struct in structs]
    if tag_field not in value:
        return f"{path}: missing required field {tag_field}, one of {', '.join(known)}"
    tag = value[tag_field]
    got = f"got {tag!r}{suggestion(tag, known)}"
    return f"{_join(path, tag_field)}: must be one of {', '.join(known)}, {got}"


def _explain(error: msgspec.ValidationError, raw: Any, root: Type) -> str:
    """Format a validation error as `path: rule, got value`."""
    match = _AT.match(str(error))
    rule, path = (match["rule"], match["path"] or "") if match else (str(error), "")
    path = path.partition(_ANY_KEY)[0]
    where = f"{path}: " if path else ""
    if "missing required field" in rule:
        return where + rule.removeprefix("Object ").replace("`", "")
    value, kind = _at(raw, root, path)
    if error.__cause__ is None:  # msgspec's rule
        choices = [str(choice) for part in union_members(kind) for choice in _choices(part)]
        guess = _unsupported_choice(kind, value) or suggestion(value, choices)
        return f"{where}must be {_wanted(kind)}, got {_shorten(value)}{guess}"
    # the rule names the keys already
    got = "" if isinstance(value, dict) else f", got {_shorten(value)}"
    return f"{where}{rule[0].lower()}{rule[1:]}{got}"


def _at(raw: Any, root: Type, path: str) -> tuple[Any, Type]:
    """Return the value at a path, and its expected type."""
    value, kind = raw, root
    for token in re.findall(r"[^.\[\]]+", path):
        key = int(token) if isinstance(value, list) else token
        value, kind = value[key], _below(kind, value, key) or inspect.AnyType()
    return value, kind


def _below(kind: Type, value: Any, key: Any) -> Type | None:
    """Return the expected type of `value[key]`, where `value` should be of `kind`; None for any."""
    for part in union_members(kind):
        match part:
            case inspect.ListType() | inspect.VarTupleType() if isinstance(value, list):
                return part.item_type
            case inspect.TupleType() if isinstance(value, list):
                return next(iter(part.item_types[key : key + 1]), None)
            case inspect.DictType() if isinstance(value, dict):
                return part.value_type
    struct = _struct_of(_structs(kind), value) if isinstance(value, dict) else None
    return _fields(struct).get(key) if struct else None


def _wanted(kind: Type) -> str:
    structs = _structs(kind)
    words = [_words(part) for part in union_members(kind) if part not in structs]
    if structs:
        tag_field = structs[0].tag_field
        words.append(f"a mapping with the key {tag_field}" if tag_field else "a mapping")
    return " or ".join(words)


def _words(part: Type) -> str:
    if isinstance(part, inspect.Metadata):
        return str((part.extra or {}).get(WORDS) or _words(part.type))
    if choices := _choices(part):
        return f"{'one of ' * (len(choices) > 1)}{', '.join(map(str, choices))}"
    match part:
        case inspect.IntType():
            return f"a whole number{_bounds(part)}"
        case inspect.FloatType():
            return f"a number{_bounds(part)}"
        case inspect.StrType():
            return "text" + (f" that matches {part.pattern}" if part.pattern else "")
        case inspect.BoolType():
            return "true or false"
        case inspect.ListType() | inspect.VarTupleType():
            least = f" of {part.min_length} or more" if part.min_length else ""
            return f"a list{least}, each item {_wanted(part.item_type)}"
        case inspect.TupleType():
            return f"a list of {', '.join(map(_wanted, part.item_types))}"
        case inspect.DictType():
            return f"a mapping of {_wanted(part.key_type)} to {_wanted(part.value_type)}"
    return f"of type {type(part).__name__.removesuffix('Type').lower()}"


def _bounds(part: inspect.IntType | inspect.FloatType) -> str:
    bounds = {">=": part.ge, ">": part.gt, "<=": part.le, "<": part.lt}
    found = [f"{sign} {bound}" for sign, bound in bounds.items() if bound is not None]
    return " " * bool(found) + " and ".join(found)


def _choices(part: Type) -> list[Any]:
    if isinstance(part, inspect.LiteralType):
        return list(part.values)
    if isinstance(part, inspect.EnumType):
        return [member.value for member in part.cls]
    return []


def union_members(kind: Type) -> Iterator[Type]:
    """Return the types of a union without None, which stands for a missing key."""
    if isinstance(kind, inspect.Metadata):
        kind = kind.type
    parts = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    yield from (part for part in parts if not isinstance(part, inspect.NoneType))


def _structs(kind: Type) -> list[StructType]:
    return [part for part in union_members(kind) if isinstance(part, StructType)]


def _struct_of(structs: list[StructType], value: dict[Any, Any]) -> StructType | None:
    """Return the struct type of a mapping: the only one, or the one that its tag selects."""
    if len(structs) == 1:
        return structs[0]
    return next((s for s in structs if s.tag_field and value.get(s.tag_field) == s.tag), None)


def _fields(struct: StructType) -> dict[str, Type]:
    return {field.encode_name: field.type for field in struct.fields}


def _join(path: str, key: object) -> str:
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else str(key)


def _unsupported_choice(kind: Type, value: Any) -> str:
    """Return a type's message about an unsupported value, in place of a suggestion; else empty."""
    words = (kind.extra or {}).get(NOT_THERE_YET, {}) if isinstance(kind, inspect.Metadata) else {}
    return f": {words[value]}" if isinstance(value, str) and value in words else ""


def unknown_key(key: object, known: Collection[str], path: str = "") -> str:
    """Message about a key that is not known below this path."""
    return f"{_join(path, key)}: unknown key{suggestion(key, known, and_all=True)}"


def suggestion(got: object, known: Collection[str], *, and_all: bool = False) -> str:
    """Return the suggestion of a similar word as the end of a message; empty without one."""
    close = difflib.get_close_matches(str(got), known, n=1)
    if close:
        return f"; did you mean {close[0]}?"
    return f"; known: {', '.join(known)}" if and_all else ""


def _shorten(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}…"
