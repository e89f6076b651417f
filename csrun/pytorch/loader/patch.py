"""Changes of a data set as they travel to the streamers, whose copies are of the script's start."""

import operator
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec
import numpy as np
import torch

from csrun.data.errors import DataError
from csrun.pytorch.loader.dataset_state import PLAIN, Kind, Path, Place, Snapshot, text_of

SENT = "numbers, text, tensors, arrays, and lists, tuples and dicts of these"


class Change(msgspec.Struct, frozen=True, array_like=True):
    """A value at a path. in_place: of the same tensor or array, whose numbers are others."""

    path: list[tuple[str, Any]]
    value: Any
    in_place: bool


class UnsendableError(DataError):
    """A change that streamers cannot be told of."""


def patch_of(paths: Iterable[Path], before: Snapshot, roots: Mapping[str, Any]) -> bytes:
    """What gives another process's copy the values of these paths.

    before: the leaves of the start, in which the other's copy has its structure

    Raises: UnsendableError for a value of another kind
    """
    sent = dict(_sent(path, before, roots) for path in paths)
    encoded = [_encoded(path, in_place, roots) for path, in_place in sent.items()]
    return msgspec.msgpack.encode(encoded)


def _encoded(path: Path, in_place: bool, roots: Mapping[str, Any]) -> bytes:
    value = _value_at(roots, path)
    places = [(place.kind.value, place.key) for place in path]
    try:
        return msgspec.msgpack.encode(Change(places, _packed(value), in_place))
    except (TypeError, OverflowError) as error:
        raise _unsendable(path, value) from error


def _sent(path: Path, before: Snapshot, roots: Mapping[str, Any]) -> tuple[Path, bool]:
    """The path that is sent for one that has changed: a tuple, or what has lost an item, whole."""
    old, value = before.get(path), _value_at(roots, path)
    if old is not None and isinstance(value, torch.Tensor | np.ndarray) and old.value is value:
        return path, True
    while path and (value is _GONE or _is_in_tuple(path, roots)):
        path = path[:-1]
        value = _value_at(roots, path)
    if len(path) <= 1 or not _is_sendable(value):
        raise _unsendable(path, value)
    return path, False


def _is_in_tuple(path: Path, roots: Mapping[str, Any]) -> bool:
    return path[-1].kind is Kind.ITEM and isinstance(_value_at(roots, path[:-1]), tuple)


def _is_sendable(value: Any) -> bool:
    if type(value) in (list, tuple):
        return all(map(_is_sendable, value))
    if type(value) is dict:
        return all(type(key) in (str, int) and _is_sendable(each) for key, each in value.items())
    return type(value) in (*PLAIN, torch.Tensor, np.ndarray)


def _unsendable(path: Path, value: Any) -> UnsendableError:
    name, what = text_of(path[1:]) or "it", type(value).__name__
    return UnsendableError(
        f"the data set's {name} has changed, but a {what} cannot be sent to the streamers: "
        f"change attributes that are {SENT}"
    )


class _Gone:
    """In the place of a value that is not there any more."""


_GONE: Any = _Gone()


def _value_at(roots: Mapping[str, Any], path: Path) -> Any:
    value: Any = roots
    for place in path:
        value = _got(value, place)
        if value is _GONE:
            break
    return value


def _got(value: Any, place: Place) -> Any:
    if place.kind is Kind.ITEM:
        try:
            return value[place.key]
        except (LookupError, TypeError):
            return _GONE
    return getattr(value, place.key, _GONE)


def apply_patch(patch: bytes, roots: Mapping[str, Any]) -> None:
    """Give this process's copy the values that were sent."""
    for encoded in msgspec.msgpack.decode(patch, type=list[bytes]):
        change = msgspec.msgpack.decode(encoded, type=Change)
        path = tuple(Place(Kind(kind), key) for kind, key in change.path)
        value = _unpacked(change.value)
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


def _set(target: Any, place: Place, value: Any) -> None:
    if place.kind is Kind.ITEM:
        operator.setitem(target, place.key, value)
    elif place.kind is Kind.ATTRIBUTE:
        setattr(target, place.key, value)
    else:
        setattr(next(c for c in type(target).__mro__ if place.key in vars(c)), place.key, value)


def _packed(value: Any) -> Any:
    """A value as msgpack has it: what that lacks is a list that begins with its name."""
    if isinstance(value, torch.Tensor):
        return "tensor", *_numbers(value.detach().numpy())
    if isinstance(value, np.ndarray):
        return "array", *_numbers(value)
    if isinstance(value, list | tuple):
        return type(value).__name__, *map(_packed, value)
    if isinstance(value, dict):
        return "dict", *((key, _packed(each)) for key, each in value.items())
    return value


def _numbers(array: "np.ndarray[Any, Any]") -> tuple[str, tuple[int, ...], bytes]:
    if array.dtype.kind in "OV":
        raise TypeError(f"an array of {array.dtype}")
    return array.dtype.str, array.shape, array.tobytes()


def _unpacked(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    name, *rest = value
    if name in ("tensor", "array"):
        dtype, shape, data = rest
        array = np.frombuffer(bytearray(data), dtype).reshape(shape)
        return torch.from_numpy(array) if name == "tensor" else array
    if name == "dict":
        return {key: _unpacked(each) for key, each in rest}
    return {"list": list, "tuple": tuple}[name](map(_unpacked, rest))
