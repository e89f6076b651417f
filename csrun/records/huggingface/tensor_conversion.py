"""Tensors from one side's names and layout to the other's, one at a time, some rows at once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from csrun.base.errors import UsageError
from csrun.records.huggingface.names import SourceTensors, named
from csrun.records.huggingface.saved_model import Folder
from csrun.records.tensor_files import CHUNK_BYTES, Array, Blocks, Stored, StoredValues

Shape = tuple[int, ...]
FLOATS = ("F16", "BF16", "F32", "F64")


@dataclass(frozen=True)
class ConvertedTensors:
    """Our tensors, made of theirs; those of ours that they lack; those of theirs without use."""

    tensors: dict[str, Blocks]
    absent: list[str]
    unused: list[str]


def from_theirs(
    folder: Folder,
    rules: Mapping[str, SourceTensors],
    shapes: Mapping[str, Shape],
    dtype: "np.dtype[Any]",
    spellings: Callable[[str], Sequence[str]],
    may_lack: Sequence[str] = (),
) -> ConvertedTensors:
    """Our tensors of these shapes. spellings: what one of theirs may be called.

    may_lack: beginnings of our names; of each either all or none has to be there.

    Raises: UsageError naming all tensors that are missing, or of another shape or type
    """
    problems, tensors, absent = [], {}, []
    used: set[str] = set()
    optional = _lacking(folder, rules, shapes, spellings, may_lack)
    for name, shape in shapes.items():
        if name in optional:
            absent.append(name)
            continue
        rule, parts = named(rules, name), []
        for part in rule.theirs:
            stored, problem = _part(folder, spellings(part), _their_shape(rule, shape))
            used.update(spellings(part))
            if problem or stored is None:
                problems.append(f"{part}: {problem}")
            else:
                parts.append(stored)
        tensors[name] = Blocks(shape, dtype, partial(_joined, parts, rule, shape, dtype))
    if problems:
        raise UsageError(
            f"{folder.path}: {len(problems)} tensors do not fit the model: {'; '.join(problems)}"
        )
    return ConvertedTensors(tensors, absent, sorted(set(folder.tensors) - used))


def _lacking(
    folder: Folder,
    rules: Mapping[str, SourceTensors],
    shapes: Mapping[str, Shape],
    spellings: Callable[[str], Sequence[str]],
    may_lack: Sequence[str],
) -> set[str]:
    """Our tensors below such a beginning that the folder has nothing of."""
    lacking: set[str] = set()
    for start in may_lack:
        names = {name for name in shapes if name.startswith(start)}
        theirs = [part for name in names for part in named(rules, name).theirs]
        if not any(one in folder.tensors for part in theirs for one in spellings(part)):
            lacking |= names
    return lacking


def _part(
    folder: Folder, spellings: Sequence[str], shape: Shape
) -> tuple[Stored | None, str | None]:
    """A tensor of theirs, or what is wrong."""
    stored = next((folder.tensors[one] for one in spellings if one in folder.tensors), None)
    if stored is None:
        return None, "missing"
    if stored.shape != shape:
        return None, f"must be {list(shape)}, got {list(stored.shape)}"
    if stored.code not in FLOATS:
        return None, f"must be floating point, got {stored.code}"
    return stored, None


def _their_shape(rule: SourceTensors, ours: Shape) -> Shape:
    part = (*ours[:-1], ours[-1] // len(rule.theirs))
    return part[::-1] if rule.is_transposed else part


def _joined(
    parts: Sequence[Stored], rule: SourceTensors, shape: Shape, dtype: "np.dtype[Any]"
) -> Iterator[Array]:
    """Our rows, some at a time."""
    values = [part.read() for part in parts]
    for rows in _blocks(shape, dtype):
        blocks = [_rows(one, rule, rows, dtype) for one in values]
        yield blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=-1)


def _rows(values: StoredValues, rule: SourceTensors, rows: slice, dtype: "np.dtype[Any]") -> Array:
    if rule.is_transposed:
        return values.block((slice(None), rows), dtype).T
    return values.block(rows, dtype)


def _blocks(shape: Shape, dtype: "np.dtype[Any]") -> Iterator[slice]:
    """Rows that make up a few megabytes at most, unless one alone is more."""
    row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    step = max(1, CHUNK_BYTES // max(1, row))
    return (slice(start, start + step) for start in range(0, shape[0], step))


def to_theirs(
    read: Callable[[str], Array],
    rules: Mapping[str, SourceTensors],
    shapes: Mapping[str, Shape],
    dtype: "np.dtype[Any]",
) -> dict[str, Blocks]:
    """Their tensors, made of ours, which `read` gives by name."""
    source = _Newest(read)
    found = {}
    for name, shape in shapes.items():
        rule = named(rules, name)
        theirs, width = _their_shape(rule, shape), shape[-1] // len(rule.theirs)
        for number, part in enumerate(rule.theirs):
            columns = slice(number * width, (number + 1) * width)
            make = partial(_cut, source, name, rule, theirs, columns)
            found[part] = Blocks(theirs, dtype, make)
    return found


class _Newest:
    """The tensor that was read last: those made of one of ours stand together."""

    def __init__(self, read: Callable[[str], Array]) -> None:
        self._read = read
        self._name: str | None = None
        self._values = np.empty(0)

    def __call__(self, name: str) -> Array:
        if name != self._name:
            self._name, self._values = None, np.empty(0)  # let go of it before the next comes
            self._values = self._read(name)
            self._name = name
        return self._values


def _cut(
    source: _Newest, name: str, rule: SourceTensors, shape: Shape, columns: slice
) -> Iterator[Array]:
    """Their rows of one of ours, some at a time."""
    part = source(name)[..., columns]
    part = part.T if rule.is_transposed else part
    for rows in _blocks(shape, part.dtype):
        yield part[rows]
