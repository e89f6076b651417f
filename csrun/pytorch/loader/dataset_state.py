"""Snapshot of what a data set is made of, cheap enough to be taken at each pass.

A data set's samples may depend on its attributes, those of data sets that it wraps, and of its
transforms and collate_fn. A snapshot has one entry a leaf: numbers and text themselves, a tensor by
identity and version, an array by identity and checksum, a long list by its elements' values or
identities.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch

MOST_DEPTH = 8  # attributes and items in one another
MOST_LEAVES = 100_000
LONG = 16  # elements from which on a list is one leaf
SUMMED_BYTES = 1 << 24  # an array of no more is summed whole, of another one as many in blocks
BLOCK_BYTES = 1 << 12
PLAIN = (bool, int, float, complex, str, bytes, type(None))
OPAQUE = (type, ModuleType, torch.Generator, torch.dtype, torch.device, np.random.Generator)


class Kind(Enum):
    """How a place is reached from the object that has it."""

    ATTRIBUTE = "attribute"
    CLASS_ATTRIBUTE = "class attribute"
    ITEM = "item"


class Place(NamedTuple):
    """One step on the way to a leaf."""

    kind: Kind
    key: Any


Path = tuple[Place, ...]


def text_of(path: Path) -> str:
    """A path as Python has it: `.inner.tensors[1]`."""
    return "".join(f"[{key!r}]" if kind is Kind.ITEM else f".{key}" for kind, key in path)


@dataclass(frozen=True)
class Leaf:
    """A value at a path, which is as it was if its mark is; held, so that no other has its id."""

    mark: tuple[Any, ...]
    value: Any = field(compare=False)


Snapshot = dict[Path, Leaf]


def snapshot_of(roots: Mapping[str, Any]) -> Snapshot:
    """The leaves of some objects, by their paths from the roots' names."""
    found: Snapshot = {}
    _Walk(found).visit((), dict(roots), 0)
    return found


def changed_paths(before: Snapshot, after: Snapshot) -> list[Path]:
    """The outermost paths of leaves that are new, gone or another."""
    if before == after:
        return []
    paths = {p for p in before.keys() | after.keys() if before.get(p) != after.get(p)}
    return [p for p in sorted(paths, key=len) if not any(p[:n] in paths for n in range(len(p)))]


class _Walk:
    """A walk over objects, each of which is entered once."""

    def __init__(self, found: Snapshot) -> None:
        self._found, self._seen = found, set[int]()

    def visit(self, path: Path, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in PLAIN:
            self._found[path] = Leaf((kind, value), value)
            return
        if isinstance(value, torch.Tensor):
            self._found[path] = Leaf((id(value), _version(value)), value)
            return
        if isinstance(value, np.ndarray):
            self._found[path] = Leaf((id(value), checksum_of(value)), value)
            return
        children = list(_children(value)) if depth < MOST_DEPTH else []
        if id(value) in self._seen or len(self._found) > MOST_LEAVES:
            children = []
        self._seen.add(id(value))
        self._found[path] = Leaf(_mark(value, bool(children)), _held(value))
        for place, child in children:
            self.visit((*path, place), child, depth + 1)


def _mark(value: Any, is_entered: bool) -> tuple[Any, ...]:
    """Of a container or an object: its own, beside those of what it has."""
    kind = type(value)
    if isinstance(value, list | tuple) and len(value) > LONG:
        kinds = set(map(type, value))
        if kinds <= set(PLAIN):
            return kind, tuple(value)
        versions = tuple(map(_version, value)) if kinds == {torch.Tensor} else ()
        return kind, tuple(map(id, value)), versions
    if isinstance(value, dict) and len(value) > LONG:
        return kind, tuple(value), tuple(map(id, value.values()))
    if isinstance(value, list | tuple | dict | set):
        return kind, len(value)
    return (kind,) if is_entered else (kind, id(value))


def _held(value: Any) -> Any:
    """What keeps the ids of a mark from being given to others."""
    if isinstance(value, list | dict):
        return value, list(value.values() if isinstance(value, dict) else value)
    return value


def _children(value: Any) -> Iterator[tuple[Place, Any]]:
    if isinstance(value, list | tuple):
        if len(value) <= LONG:
            yield from ((Place(Kind.ITEM, number), child) for number, child in enumerate(value))
    elif isinstance(value, dict):
        if len(value) <= LONG:
            yield from ((Place(Kind.ITEM, key), child) for key, child in value.items())
    elif not isinstance(value, OPAQUE):
        for name, child in getattr(value, "__dict__", {}).items():
            yield Place(Kind.ATTRIBUTE, name), child
        yield from _class_attributes(value)


def _class_attributes(value: Any) -> Iterator[tuple[Place, Any]]:
    """Numbers and text of the classes that are the script's own."""
    hidden = set(getattr(value, "__dict__", {}))
    for each in type(value).__mro__:
        if each.__module__.partition(".")[0] not in _LIBRARIES:
            for name, child in vars(each).items():
                if type(child) in PLAIN and not name.startswith("__") and name not in hidden:
                    hidden.add(name)
                    yield Place(Kind.CLASS_ATTRIBUTE, name), child


_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "torchvision", "numpy"} - {"__main__"})


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def checksum_of(array: "np.ndarray[Any, Any]") -> int:
    """A sum over an array's bytes; over blocks at even distances where it is large."""
    if array.dtype.hasobject:
        return hash(tuple(map(id, array.ravel().tolist()))) if array.size <= LONG else 0
    flat = np.ascontiguousarray(array) if array.nbytes <= SUMMED_BYTES else array
    if not flat.flags.c_contiguous:
        return crc32(np.ascontiguousarray(flat[:: max(1, len(flat) // 64)][:64]).tobytes()[:65536])
    memory = flat.reshape(-1).view(np.uint8).data if flat.size else memoryview(b"")
    if array.nbytes <= SUMMED_BYTES:
        return crc32(memory)
    found = 0
    step = array.nbytes // (SUMMED_BYTES // BLOCK_BYTES // 16)
    for start in range(0, array.nbytes, step):
        found = crc32(memory[start : start + BLOCK_BYTES], found)
    return found
