"""Indexable samples: rows of arrays in memory or in files."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from csrun.data.errors import DataError, Origin, require
from csrun.data.formats.base import Array, Column, Sample
from csrun.data.input_operators import StageClock

Batch = tuple[Array, ...]
Rows = npt.NDArray[np.int64]
Outs = Sequence[Array | None]  # destination arrays, None for new memory


class Samples(Protocol):
    """Samples by number."""

    def __len__(self) -> int:
        """Number of samples."""

    def each(self, rows: Rows, clock: StageClock) -> list[Sample]:
        """Return samples by number, one by one."""

    def origin(self, row: int) -> Origin:
        """Origin of a sample."""


@dataclass(frozen=True)
class ArraySamples:
    """Samples along axis 0 of arrays of equal length. file: the file of the arrays, if any."""

    arrays: tuple[Column, ...]
    stage: str
    file: str = ""

    def __len__(self) -> int:
        return len(self.arrays[0])

    def each(self, rows: Rows, clock: StageClock) -> list[Sample]:
        """Return samples by number, one by one, as views."""
        with clock.timed(self.stage):
            return list(zip(*(each(array, rows) for array in self.arrays), strict=True))

    def gather(self, rows: Rows, clock: StageClock, outs: Outs = ()) -> Batch:
        """Copy samples into a batch, into `outs` if given."""
        outs = outs or (None,) * len(self.arrays)
        with clock.timed(self.stage):
            return tuple(gather(a, rows, out) for a, out in zip(self.arrays, outs, strict=True))

    def shapes(self, rows: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of the arrays of a batch."""
        return tuple((rows, *array.shape[1:]) for array in self.arrays)

    @property
    def dtypes(self) -> tuple["np.dtype[Any]", ...]:
        """Dtypes of the arrays."""
        return tuple(array.dtype for array in self.arrays)

    def origin(self, row: int) -> Origin:
        """Origin of a sample."""
        return self.file, row


class JoinedSamples:
    """Samples of several files, concatenated."""

    def __init__(self, parts: Sequence[ArraySamples]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))
        self._starts = np.array([0, *self._ends[:-1]], np.int64)
        _require_same_structure(parts)

    def __len__(self) -> int:
        return self._ends[-1]

    def each(self, rows: Rows, clock: StageClock) -> list[Sample]:
        """Return samples by number, one by one, with one read per file."""
        found: dict[int, Sample] = {}
        for part, places in self._by_part(rows):
            its = self._parts[part].each(rows[places] - self._starts[part], clock)
            found.update(zip(places.tolist(), its, strict=True))
        return [found[place] for place in range(len(rows))]

    def gather(self, rows: Rows, clock: StageClock, outs: Outs = ()) -> Batch:
        """Copy samples into a batch, into `outs` if given."""
        parts = self._by_part(rows)
        # Of one file, the usual case, rows go straight to their places without a copy between.
        if len(parts) == 1:
            [(part, _)] = parts
            return self._parts[part].gather(rows - self._starts[part], clock, outs)
        made = outs or (None,) * len(self.dtypes)
        kinds = zip(made, self.shapes(len(rows)), self.dtypes, strict=True)
        wholes = tuple(np.empty(s, dtype) if out is None else out for out, s, dtype in kinds)
        for part, places in parts:
            found = self._parts[part].gather(rows[places] - self._starts[part], clock)
            with clock.timed(self._parts[0].stage):
                for whole, values in zip(wholes, found, strict=True):
                    whole[places] = values
        return wholes

    def shapes(self, rows: int) -> tuple[tuple[int, ...], ...]:
        """Shapes of the arrays of a batch."""
        return self._parts[0].shapes(rows)

    @property
    def dtypes(self) -> tuple["np.dtype[Any]", ...]:
        """Dtypes of the arrays."""
        return self._parts[0].dtypes

    def origin(self, row: int) -> Origin:
        """Origin of a sample: the file, and its number in it."""
        part, number = self._place(row)
        return self._parts[part].origin(number)

    def _by_part(self, rows: Rows) -> list[tuple[int, Rows]]:
        """Group rows by file, each with the positions of its rows."""
        parts = np.searchsorted(self._ends, rows, "right")
        return [(part, np.flatnonzero(parts == part)) for part in sorted(set(parts.tolist()))]

    def _place(self, row: int) -> tuple[int, int]:
        part = bisect_right(self._ends, row)
        return part, row - int(self._starts[part])


def gather(array: Column, rows: Rows, out: Array | None = None) -> Array:
    """Return `array[rows]` in new memory, or in `out`.

    Consecutive rows are one copy, and those of a file one read. Views with non-contiguous rows
    (windows over tokens) are copied row by row, as `np.take` would first copy the whole view.

    Shapes: array [N, …], rows [B] -> [B, …]; out is of the same dtype
    """
    if not isinstance(array, np.ndarray):
        return _placed(array[rows], out)
    first = int(rows[0])
    if _consecutive(rows):
        source = array[first : first + len(rows)]
        return np.array(source) if out is None else _placed(source, out)
    if array.flags.c_contiguous:
        return np.take(array, rows, axis=0, out=out, mode="clip")  # mode `raise` would buffer
    if out is None:
        out = np.empty((len(rows), *array.shape[1:]), array.dtype)
    for place, row in enumerate(rows.tolist()):
        out[place] = array[row]
    return out


def each(array: Column, rows: Rows) -> list[Array]:
    """Return rows one by one: views, or the rows of one read of a file."""
    if isinstance(array, np.ndarray):
        return [np.asarray(array[row]) for row in rows.tolist()]
    return [np.asarray(row) for row in array[rows]]


def _placed(source: Array, out: Array | None) -> Array:
    if out is None:
        return source
    np.copyto(out, source)
    return out


def _consecutive(rows: Rows) -> bool:
    count = len(rows)
    return bool(rows[-1] - rows[0] == count - 1 and (rows[1:] > rows[:-1]).all())


def read_only(array: Array) -> Array:
    """Return a read-only view, as other readers share the memory."""
    view = array.view()
    # A user's function that changed it in place would change the sample in later passes.
    view.flags.writeable = False
    return view


def from_arrays(arrays: Sequence[Array], names: Sequence[str]) -> ArraySamples:
    """Return the samples along axis 0 of named arrays of equal length, without copying.

    Raises: DataError for arrays of unequal length, or without samples
    """
    require(bool(arrays), "from_arrays", "at least one array is needed", "none")
    held = tuple(map(read_only, arrays))
    require_equally_long("from_arrays", held, names)
    empty = len(held[0]) == 0
    require(not empty, "from_arrays", "the data set must not be empty", _shapes(held, names))
    return ArraySamples(held, "from_arrays")


def require_equally_long(where: str, arrays: Sequence[Column], names: Sequence[str] = ()) -> None:
    """Refuse arrays of different lengths along axis 0."""
    axes = all(array.shape for array in arrays)
    require(axes, where, "arrays must have a first axis, of samples", _shapes(arrays, names))
    lengths = {array.shape[0] for array in arrays}
    require(len(lengths) == 1, where, "arrays must have equal lengths", _shapes(arrays, names))


def _shapes(arrays: Sequence[Column], names: Sequence[str]) -> str:
    if not names:
        return f"shapes {[array.shape for array in arrays]}"
    named = zip(names, arrays, strict=True)
    return "shapes " + ", ".join(f"{name} {array.shape}" for name, array in named)


def _require_same_structure(parts: Sequence[ArraySamples]) -> None:
    first = parts[0]
    for part in parts[1:]:
        if part.shapes(0) != first.shapes(0) or part.dtypes != first.dtypes:
            raise DataError(
                f"from_files: {part.file} has samples of {_kinds(part)}, {first.file} of "
                f"{_kinds(first)}: all files of a data set must have the same structure"
            )


def _kinds(part: ArraySamples) -> str:
    pairs = zip(part.dtypes, part.shapes(0), strict=True)
    return ", ".join(f"{dtype.name} {list(shape[1:])}" for dtype, shape in pairs)
