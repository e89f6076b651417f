"""The original's keys of mixed precision in a params file, as keys of `runconfig`.

model: {mixed_precision: true, fp16_type: bfloat16}   is   runconfig: {precision: mixed_bfloat16}
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import inspect
from msgspec.inspect import AnyType, DataclassType, DictType, StructType, Type, TypedDictType

from csrun.base.errors import UsageError
from csrun.base.precision_names import CB16, MIXED, OPT_LEVEL
from csrun.base.typed_yaml import union_members
from csrun.context import Role, current
from csrun.records import log_lines

log = logging.getLogger("csrun")

_MIXED_PRECISION, _FP16_TYPE = "model.mixed_precision", "model.fp16_type"
_USE_BFLOAT16, _USE_CBFLOAT16 = "model.use_bfloat16", "csconfig.use_cbfloat16"
_PRECISION = "runconfig.precision"
_OPT_LEVELS = f"runconfig.{OPT_LEVEL}", f"model.{OPT_LEVEL}"
#: The keys, and the values that each may have.
_VALUES: Mapping[str, tuple[Any, ...]] = {
    _MIXED_PRECISION: (True, False),
    _FP16_TYPE: ("float16", "bfloat16", CB16),
    _USE_BFLOAT16: (True, False),
    _USE_CBFLOAT16: (True, False),
    **dict.fromkeys(_OPT_LEVELS, (0, 1, 2)),
}
_SCALES = "loss_scaling_factor", "loss_scale"


def translate_original_keys(raw: dict[str, Any], schema: type[Any], path: Path | str) -> None:
    """Replace the keys in a file's content; a script's own keys of these names stay.

    Raises: UsageError for values out of range, and for keys that contradict each other
    """
    found = _taken(raw, schema)
    for key, value in found.items():
        known = _VALUES[key]
        if not any(value == each and type(value) is type(each) for each in known):
            words = ", ".join(str(each).lower() for each in known)
            raise UsageError(f"{path}: {key}: must be one of {words}, got {value!r}")
    if not found:
        return
    section = raw.setdefault("runconfig", {})
    if not isinstance(section, dict):
        return  # refused by the schema
    try:
        precision = _precision(found, section.get("precision"))
        levels = _opt_levels(found)
    except UsageError as error:
        raise UsageError(f"{path}: {error}") from error
    if precision is not None:
        section["precision"] = precision
    if found.get(_USE_BFLOAT16) and precision == f"{MIXED}bfloat16":
        _leave_unscaled(raw.get("optimizer"))
    for key in (key for key, level in levels.items() if level):
        _log(f"{key}: {levels[key]} has no effect: sums and softmax are float32, as at level 0")


def _taken(raw: dict[str, Any], schema: type[Any]) -> dict[str, Any]:
    """Remove the keys from a file's content, and return them with their values."""
    found = {}
    for name in _VALUES:
        section, key = name.split(".")
        place = raw.get(section)
        if isinstance(place, dict) and key in place and not _declares(schema, section, key):
            found[name] = place.pop(key)
            if not place and section not in schema.__struct_fields__:
                del raw[section]
    return found


def _declares(schema: type[Any], section: str, key: str) -> bool:
    """Return whether a script has a key of its own; a mapping whose keys are free has any."""
    root = inspect.type_info(schema)
    assert isinstance(root, StructType), "it is that of a params file"
    kinds = [field.type for field in root.fields if field.name == section]
    return any(_has_key(part, key) for kind in kinds for part in union_members(kind))


def _has_key(kind: Type, key: str) -> bool:
    if isinstance(kind, StructType | DataclassType | TypedDictType):
        return any(field.encode_name == key for field in kind.fields)
    return isinstance(kind, AnyType | DictType)


def _precision(found: Mapping[str, Any], given: Any) -> str | None:
    """Return the run's precision; None for that of the file, or the default.

    Raises: UsageError for keys that contradict each other
    """
    if not isinstance(given, str | None):
        return None  # refused by the schema
    is_given = given is not None and given.startswith(MIXED)
    is_mixed = found.get(_MIXED_PRECISION, is_given)
    if given is not None and is_mixed != is_given:
        raise _contradiction({_MIXED_PRECISION: is_mixed, _PRECISION: given})
    if not is_mixed:
        _require_no_cb16(found)
        for key in (_FP16_TYPE, _USE_BFLOAT16):
            if found.get(key):
                _log(f"{key} has no effect without {_MIXED_PRECISION}: true")
        return None
    formats = {_PRECISION: given.removeprefix(MIXED)} if given is not None else {}
    if _FP16_TYPE in found:
        formats[_FP16_TYPE] = found[_FP16_TYPE]
    flags = ((_USE_BFLOAT16, "bfloat16"), (_USE_CBFLOAT16, CB16))
    formats |= {key: name for key, name in flags if found.get(key)}
    (first, name), *others = formats.items() or [(_MIXED_PRECISION, "float16")]
    contradicting = [other for other, another in others if another != name]
    contradicting += [key for key, each in flags if each == name and found.get(key) is False]
    if contradicting:
        values, other = {**found, _PRECISION: given}, contradicting[0]
        raise _contradiction({first: values[first], other: values[other]})
    return f"{MIXED}{name}"


def _opt_levels(found: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the levels of accumulation by their keys.

    Raises: UsageError for two that differ
    """
    levels = {key: found[key] for key in _OPT_LEVELS if key in found}
    if len({*levels.values()}) > 1:
        raise _contradiction(levels)
    return levels


def _require_no_cb16(found: Mapping[str, Any]) -> None:
    for key, value in ((_USE_CBFLOAT16, True), (_FP16_TYPE, CB16)):
        if found.get(key) == value:
            raise UsageError(
                f"{key.partition('.')[2]}={value} can only be used in mixed precision mode. Set "
                "mixed_precision to True."
            )


def _contradiction(values: Mapping[str, Any]) -> UsageError:
    (first, value), (other, another) = values.items()
    return UsageError(f"{first} is {value} and {other} is {another}: give one of them")


def _leave_unscaled(optimizer: Any) -> None:
    """Scale no loss dynamically, as the original does with use_bfloat16."""
    if not isinstance(optimizer, dict):
        return
    for key in _SCALES:
        if optimizer.get(key) in ("dynamic", "tf_dynamic"):
            optimizer[key] = 1.0
            _log(f"{_USE_BFLOAT16}: bfloat16 needs no dynamic loss scaling: {key} is 1.0")


def _log(line: str) -> None:
    """Log a line, in the chief alone."""
    context = current()
    if context is None or context.mode is None or context.role is Role.CHIEF:
        log_lines.configure()
        log.info(line)
