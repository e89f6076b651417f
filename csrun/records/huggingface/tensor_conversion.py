"""Conversion of tensors between the names and layouts of both sides, a few rows at a time."""

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
    """Converted tensors; those of ours that are missing; those of theirs that are not used."""

    tensors: dict[str, Blocks]
    absent: list[str]
    unused: list[str]


def tensors_from_huggingface(
    folder: Folder,
    rules: Mapping[str, SourceTensors],
    shapes: Mapping[str, Shape],
    dtype: "np.dtype[Any]",
    spellings: Callable[[str], Sequence[str]],
    may_lack: Sequence[str] = (),
) -> ConvertedTensors:
    """Convert their tensors to ours, with these shapes.

    spellings: alternative names of one of their tensors.
    may_lack: prefixes of our names; of each either all or no tensors must exist.

    Raises: UsageError naming all tensors that are missing, or have another shape or type
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
    """Return our tensors below a prefix of which the folder has none."""
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
    """Return a tensor of theirs, or the problem with it."""
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
    """Yield our rows, a few at a time."""
    values = [part.read() for part in parts]
    for rows in _blocks(shape, dtype):
        blocks = [_rows(one, rule, rows, dtype) for one in values]
        yield blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=-1)


def _rows(values: StoredValues, rule: SourceTensors, rows: slice, dtype: "np.dtype[Any]") -> Array:
    if rule.is_transposed:
        return values.block((slice(None), rows), dtype).T
    return values.block(rows, dtype)


def _blocks(shape: Shape, dtype: "np.dtype[Any]") -> Iterator[slice]:
    """Yield ranges of rows of a few megabytes each, at least one row."""
    row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    step = max(1, CHUNK_BYTES // max(1, row))
    return (slice(start, start + step) for start in range(0, shape[0], step))


def tensors_to_huggingface(
    read: Callable[[str], Array],
    rules: Mapping[str, SourceTensors],
    shapes: Mapping[str, Shape],
    dtype: "np.dtype[Any]",
) -> dict[str, Blocks]:
    """Convert our tensors, which `read` returns by name, to theirs."""
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
    """Cache of the tensor that was read last: those made from one of ours are consecutive."""

    def __init__(self, read: Callable[[str], Array]) -> None:
        self._read = read
        self._name: str | None = None
        self._values = np.empty(0)

    def __call__(self, name: str) -> Array:
        if name != self._name:
            self._name, self._values = None, np.empty(0)  # freed before the next one is read
            self._values = self._read(name)
            self._name = name
        return self._values


def _cut(
    source: _Newest, name: str, rule: SourceTensors, shape: Shape, columns: slice
) -> Iterator[Array]:
    """Yield their rows of one of our tensors, a few at a time."""
    part = source(name)[..., columns]
    part = part.T if rule.is_transposed else part
    for rows in _blocks(shape, part.dtype):
        yield part[rows]
