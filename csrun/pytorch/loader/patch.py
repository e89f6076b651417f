"""Encoding of a data set's changes for the streamers, whose copies are from the script's start."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import torch

from csrun.data.errors import DataError
from csrun.pytorch.loader.dataset_state import PLAIN, Path, PathKind, PathStep, Snapshot, text_of

SENT = "numbers, text, tensors, arrays, and lists, tuples and dicts of these"


class LoaderChange(msgspec.Struct, frozen=True, array_like=True):
    """A new value at a path. in_place: the values of the same tensor or array have changed."""

    path: list[tuple[str, Any]]
    value: Any
    in_place: bool


class SerializationError(DataError):
    """A change that cannot be sent to streamers."""


def patch_of(paths: Iterable[Path], before: Snapshot, roots: Mapping[str, Any]) -> bytes:
    """Encode the current values at some paths for `apply_patch` in another process.

    before: the leaves at the script's start, as the other process has them

    Raises: SerializationError for a value without an encoding
    """
    sent = dict(_path_to_send(path, before, roots) for path in paths)
    encoded = [_encode(path, in_place, roots) for path, in_place in sent.items()]
    return msgspec.msgpack.encode(encoded)


def _encode(path: Path, in_place: bool, roots: Mapping[str, Any]) -> bytes:
    value = _value_at(roots, path)
    places = [(place.kind.value, place.key) for place in path]
    try:
        return msgspec.msgpack.encode(LoaderChange(places, _pack(value), in_place))
    except (TypeError, OverflowError) as error:
        raise _serialization_error(path, value) from error


def _path_to_send(path: Path, before: Snapshot, roots: Mapping[str, Any]) -> tuple[Path, bool]:
    """Return the path to send for a changed one, and whether it changed in place.

    A tuple, or a container that has lost an item, is sent completely.
    """
    old, value = before.get(path), _value_at(roots, path)
    if old is not None and isinstance(value, torch.Tensor | np.ndarray) and old.value is value:
        return path, True
    while path and (value is _GONE or _is_in_tuple(path, roots)):
        path = path[:-1]
        value = _value_at(roots, path)
    if len(path) <= 1 or not _is_sendable(value):
        raise _serialization_error(path, value)
    return path, False


def _is_in_tuple(path: Path, roots: Mapping[str, Any]) -> bool:
    return path[-1].kind is PathKind.ITEM and isinstance(_value_at(roots, path[:-1]), tuple)


def _is_sendable(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_sendable, value))
    if type(value) is dict:
        return all(type(key) in (str, int) and _is_sendable(each) for key, each in value.items())
    return type(value) in (*PLAIN, torch.Tensor, np.ndarray)


def _serialization_error(path: Path, value: Any) -> SerializationError:
    name, what = text_of(path[1:]) or "it", type(value).__name__
    return SerializationError(
        f"the data set's {name} has changed, but a value of type {what} cannot be sent to the "
        f"streamers: change attributes that are {SENT}"
    )


class _Removed:
    """Sentinel for a value that was removed."""


_GONE: Any = _Removed()


def _value_at(roots: Mapping[str, Any], path: Path) -> Any:
    value: Any = roots
    for place in path:
        value = _follow(value, place)
        if value is _GONE:
            break
    return value


def _follow(value: Any, place: PathStep) -> Any:
    if place.kind is PathKind.ITEM:
        try:
            return value[place.key]
        except (LookupError, TypeError):
            return _GONE
    return getattr(value, place.key, _GONE)


def apply_patch(patch: bytes, roots: Mapping[str, Any]) -> None:
    """Apply the values of a patch to this process's copy."""
    for encoded in msgspec.msgpack.decode(patch, type=list[bytes]):
        change = msgspec.msgpack.decode(encoded, type=LoaderChange)
        path = tuple(PathStep(PathKind(kind), key) for kind, key in change.path)
        value = _unpack(change.value)
        if change.in_place:
            _write(_value_at(roots, path), value)
        else:
            _set(_value_at(roots, path[:-1]), path[-1], value)


def _write(target: Any, value: Any) -> None:
    if isinstance(target, torch.Tensor):
        with torch.no_grad():
            target.copy_(value)
    else:
        target[...] = value


def _set(target: Any, place: PathStep, value: Any) -> None:
    if place.kind is PathKind.ITEM:
        operator.setitem(target, place.key, value)
    elif place.kind is PathKind.ATTRIBUTE:
        setattr(target, place.key, value)
    else:
        setattr(next(c for c in type(target).__mro__ if place.key in vars(c)), place.key, value)


def _pack(value: Any) -> Any:
    """Encode a value for msgpack: unsupported types become lists that begin with the type's
    name.
    """
    if isinstance(value, torch.Tensor):
        return "tensor", *_bytes_of(value.detach().numpy())
    if isinstance(value, np.ndarray):
        return "array", *_bytes_of(value)
    if isinstance(value, list | tuple):
        return type(value).__name__, *map(_pack, value)
    if isinstance(value, dict):
        return "dict", *((key, _pack(each)) for key, each in value.items())
    return value


def _bytes_of(array: "np.ndarray[Any, Any]") -> tuple[str, tuple[int, ...], bytes]:
    if array.dtype.kind in "OV":
        raise TypeError(f"an array of {array.dtype}")
    return array.dtype.str, array.shape, array.tobytes()


def _unpack(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    name, *rest = value
    if name in ("tensor", "array"):
        dtype, shape, data = rest
        array = np.frombuffer(bytearray(data), dtype).reshape(shape)
        return torch.from_numpy(array) if name == "tensor" else array
    if name == "dict":
        return {key: _unpack(each) for key, each in rest}
    return {"list": list, "tuple": tuple}[name](map(_unpack, rest))
