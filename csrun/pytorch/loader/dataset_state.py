"""Snapshot of a data set's state, cheap enough to be taken at each pass.

Samples may depend on attributes of a data set, of data sets that it wraps, and of its transforms
and collate_fn. A snapshot has one entry per leaf: numbers and text by value, a tensor by identity
and version, an array by identity and checksum, a long list by its elements' values or identities.
"""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from logging import Logger
from types import ModuleType
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import torch

MOST_DEPTH = 8  # nested attributes and items
MOST_LEAVES = 100_000
LONG = 16  # elements; a longer list is one leaf
SUMMED_BYTES = 1 << 24  # a larger array is sampled in blocks
BLOCK_BYTES = 1 << 12
PLAIN = (bool, int, float, complex, str, bytes, type(None))
OPAQUE = (type, ModuleType, torch.Generator, torch.dtype, torch.device, np.random.Generator, Logger)


class PathKind(Enum):
    """Kind of access in a step of a path."""

    ATTRIBUTE = "attribute"
    CLASS_ATTRIBUTE = "class attribute"
    ITEM = "item"


class PathStep(NamedTuple):
    """One step of a path to a leaf."""

    kind: PathKind
    key: Any


Path = tuple[PathStep, ...]


def text_of(path: Path) -> str:
    """Return a path in Python's syntax: `.inner.tensors[1]`."""
    return "".join(f"[{key!r}]" if kind is PathKind.ITEM else f".{key}" for kind, key in path)


@dataclass(frozen=True)
class StateLeaf:
    """A value at a path, unchanged while its mark is; kept alive, so that its id stays its own."""

    mark: tuple[Any, ...]
    value: Any = field(compare=False)


Snapshot = dict[Path, StateLeaf]


def snapshot_of(roots: Mapping[str, Any]) -> Snapshot:
    """Return the leaves of objects by their paths, which begin with a root's name."""
    found: Snapshot = {}
    _Walk(found).visit((), dict(roots), 0)
    return found


def changed_paths(before: Snapshot, after: Snapshot) -> list[Path]:
    """Return the outermost paths of leaves that were added, removed or changed."""
    if before == after:
        return []
    paths = {p for p in before.keys() | after.keys() if before.get(p) != after.get(p)}
    return [p for p in sorted(paths, key=len) if not any(p[:n] in paths for n in range(len(p)))]


class _Walk:
    """Walk over objects, each of which is entered once."""

    def __init__(self, found: Snapshot) -> None:
        self._found, self._seen = found, set[int]()

    def visit(self, path: Path, value: Any, depth: int) -> None:
        kind = type(value)
        if kind in PLAIN:
            self._found[path] = StateLeaf((kind, value), value)
            return
        if isinstance(value, torch.Tensor):
            self._found[path] = StateLeaf((id(value), _version(value)), value)
            return
        if isinstance(value, np.ndarray):
            self._found[path] = StateLeaf((id(value), checksum_of(value)), value)
            return
        children = list(_children(value)) if depth < MOST_DEPTH else []
        if id(value) in self._seen or len(self._found) > MOST_LEAVES:
            children = []
        self._seen.add(id(value))
        self._found[path] = StateLeaf(_mark(value, bool(children)), _kept_alive(value))
        for place, child in children:
            self.visit((*path, place), child, depth + 1)


def _mark(value: Any, is_entered: bool) -> tuple[Any, ...]:
    """Return the mark of a container or object itself, without its children."""
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


def _kept_alive(value: Any) -> Any:
    """Return references that keep the objects alive whose ids are in a mark."""
    if isinstance(value, list | dict):
        return value, list(value.values() if isinstance(value, dict) else value)
    return value


def _children(value: Any) -> Iterator[tuple[PathStep, Any]]:
    if isinstance(value, list | tuple):
        if len(value) <= LONG:
            yield from (
                (PathStep(PathKind.ITEM, number), child) for number, child in enumerate(value)
            )
    elif isinstance(value, dict):
        if len(value) <= LONG:
            yield from ((PathStep(PathKind.ITEM, key), child) for key, child in value.items())
    elif not isinstance(value, OPAQUE):
        for name, child in getattr(value, "__dict__", {}).items():
            yield PathStep(PathKind.ATTRIBUTE, name), child
        yield from _class_attributes(value)


def _class_attributes(value: Any) -> Iterator[tuple[PathStep, Any]]:
    """Yield numbers and text of classes defined outside the common libraries."""
    hidden = set(getattr(value, "__dict__", {}))
    for each in type(value).__mro__:
        if each.__module__.partition(".")[0] not in _LIBRARIES:
            for name, child in vars(each).items():
                if type(child) in PLAIN and not name.startswith("__") and name not in hidden:
                    hidden.add(name)
                    yield PathStep(PathKind.CLASS_ATTRIBUTE, name), child


_LIBRARIES = frozenset({*sys.stdlib_module_names, "torch", "torchvision", "numpy"} - {"__main__"})


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def checksum_of(array: "np.ndarray[Any, Any]") -> int:
    """Return a checksum of an array's bytes, of evenly spaced blocks where it is large."""
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
