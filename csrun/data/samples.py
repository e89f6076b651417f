"""Samples that can be read in any order."""

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Protocol

import numpy as np

from csrun.data.errors import DataError, require
from csrun.data.formats.base import Array, Column, Sample
from csrun.data.gather import Rows, each, gather
from csrun.data.operators import Operator
from csrun.data.origins import Origin, text_of
from csrun.data.stage_clock import StageClock

Batch = tuple[Array, ...]
MapFunction = Callable[..., Any]

NAMES = ("features", "labels")  # of a batch that is a dict
Outs = Sequence[Array | None]  # where to put what, None for new memory


class Samples(Protocol):
    """So many samples, by their numbers."""

    def __len__(self) -> int:
        """How many."""

    def each(self, rows: Rows, clock: StageClock) -> list[Sample]:
        """The samples with these numbers, one by one."""

    def origin(self, row: int) -> Origin:
        """Where a sample comes from."""


@dataclass(frozen=True)
class ArraySamples:
    """The samples along the first axis of equally long arrays. file: where they lie, if in one."""

    arrays: tuple[Column, ...]
    stage: str
    file: str = ""

    def __len__(self) -> int:
        """How many."""
        return len(self.arrays[0])

    def each(self, rows: Rows, clock: StageClock) -> list[Sample]:
        """The samples with these numbers, one by one: views."""
        with clock.timed(self.stage):
            return list(zip(*(each(array, rows) for array in self.arrays), strict=True))

    def gather(self, rows: Rows, clock: StageClock, outs: Outs = ()) -> Batch:
        """Copies of the samples as a batch, in `outs` where they are given."""
        outs = outs or (None,) * len(self.arrays)
        with clock.timed(self.stage):
            return tuple(gather(a, rows, out) for a, out in zip(self.arrays, outs, strict=True))

    def shapes(self, rows: int) -> tuple[tuple[int, ...], ...]:
        """Of the arrays of a batch of so many."""
        return tuple((rows, *array.shape[1:]) for array in self.arrays)

    @property
    def dtypes(self) -> tuple["np.dtype[Any]", ...]:
        """Of the arrays."""
        return tuple(array.dtype for array in self.arrays)

    def origin(self, row: int) -> Origin:
        """Where a sample comes from."""
        return self.file, row


class JoinedSamples:
    """The samples of several files, one after the other."""

    def __init__(self, parts: Sequence[ArraySamples]) -> None:
        self._parts = parts
        self._ends = list(accumulate(map(len, parts)))
        self._starts = np.array([0, *self._ends[:-1]], np.int64)
        _require_alike(parts)

    def __len__(self) -> int:
        """How many."""
        return self._ends[-1]

    def each(self, rows: Rows, clock: StageClock) -> list[Sample]:
        """The samples with these numbers, one by one; a file that is read is asked once."""
        found: dict[int, Sample] = {}
        for part, places in self._by_part(rows):
            its = self._parts[part].each(rows[places] - self._starts[part], clock)
            found.update(zip(places.tolist(), its, strict=True))
        return [found[place] for place in range(len(rows))]

    def gather(self, rows: Rows, clock: StageClock, outs: Outs = ()) -> Batch:
        """Copies of the samples as a batch, in `outs` where they are given."""
        parts = self._by_part(rows)
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
        """Of the arrays of a batch of so many."""
        return self._parts[0].shapes(rows)

    @property
    def dtypes(self) -> tuple["np.dtype[Any]", ...]:
        """Of the arrays."""
        return self._parts[0].dtypes

    def origin(self, row: int) -> Origin:
        """Where a sample comes from: the file, and its number there."""
        part, number = self._place(row)
        return self._parts[part].origin(number)

    def _by_part(self, rows: Rows) -> list[tuple[int, Rows]]:
        """The files that rows lie in, each with the places of its rows among these."""
        parts = np.searchsorted(self._ends, rows, "right")
        return [(part, np.flatnonzero(parts == part)) for part in np.unique(parts).tolist()]

    def _place(self, row: int) -> tuple[int, int]:
        part = bisect_right(self._ends, row)
        return part, row - int(self._starts[part])


@dataclass(frozen=True)
class MappedSamples:
    """A function of each sample. One that was not said to run in parallel runs alone."""

    below: Samples
    function: MapFunction
    operator: Operator
    alone: AbstractContextManager[Any]

    def __len__(self) -> int:
        """How many."""
        return len(self.below)

    def each(self, rows: Rows, clock: StageClock) -> list[Sample]:
        """The samples with these numbers, mapped one by one."""
        samples = self.below.each(rows, clock)
        with self.alone:
            return self._mapped(samples, rows, clock)

    def _mapped(self, samples: list[Sample], rows: Rows, clock: StageClock) -> list[Sample]:
        done: list[Sample] = []
        with clock.timed(self.operator.stage):
            try:
                for sample in samples:
                    done.append(as_sample(self.function(*sample)))
            except Exception as error:
                origin = self.origin(int(rows[len(done)]))
                error.add_note(failed_in(self.operator, text_of(origin)))
                raise
        return done

    def origin(self, row: int) -> Origin:
        """Where a sample comes from."""
        return self.below.origin(row)


@dataclass(frozen=True)
class CachedSamples:
    """Samples that stay in this task's memory once they were made."""

    below: Samples
    kept: dict[int, Sample] = field(default_factory=dict)

    def __len__(self) -> int:
        """How many."""
        return len(self.below)

    def each(self, rows: Rows, clock: StageClock) -> list[Sample]:
        """The samples with these numbers; only those not known yet are made."""
        numbers = rows.tolist()
        new = [number for number in numbers if number not in self.kept]
        if new:
            made = self.below.each(np.array(new, np.int64), clock)
            kept = (tuple(map(read_only, sample)) for sample in made)
            self.kept.update(zip(new, kept, strict=True))
        return [self.kept[number] for number in numbers]

    def origin(self, row: int) -> Origin:
        """Where a sample comes from."""
        return self.below.origin(row)


def read_only(array: Array) -> Array:
    """A view that a function which works in place is refused: others will read the same memory."""
    view = array.view()
    view.flags.writeable = False
    return view


def failed_in(operator: Operator, what: str) -> str:
    """A note for an exception of the user's function."""
    place = f" ({operator.where})" if operator.where else ""
    return f"input_fn: {operator.stage}{place} failed at {what}"


def as_sample(value: Any) -> Sample:
    """What a user's function gave for a sample, as a tuple of arrays.

    Raises: DataError for a dict of other keys than features and labels
    """
    if isinstance(value, Mapping):
        value = _by_name(value)
    parts = value if isinstance(value, tuple | list) else (value,)
    return tuple(part if isinstance(part, np.ndarray) else np.asarray(part) for part in parts)


def as_batch(value: Any) -> Batch:
    """What a user's function or iterable gave, as a tuple of arrays; torch tensors become arrays.

    Raises: DataError for anything that is not an array, a tuple or list of arrays, or a dict of
    features and labels
    """
    batch = as_sample(value)
    for part in batch:
        if part.dtype == object:
            held = type(next(iter(part.flat), None)).__name__
            raise DataError(f"input_fn: a batch is made of arrays of numbers, got {held}")
    return batch


def _by_name(value: Mapping[Any, Any]) -> tuple[Any, ...]:
    """The values of a dict in the order in which model_fn takes them."""
    rule = f"a dict must have the keys {' and '.join(NAMES)}, or be a tuple in that order"
    fine = NAMES[0] in value and all(key in NAMES for key in value)
    require(fine, "input_fn", rule, ", ".join(map(str, value)) or "no key")
    return tuple(value[name] for name in NAMES if name in value)


def from_arrays(*arrays: Any) -> ArraySamples:
    """The samples along the first axis of equally long arrays; nothing is copied.

    Raises: DataError for arrays of unequal length, or without samples.
    """
    require(bool(arrays), "from_arrays", "at least one array is needed", "none")
    held = tuple(read_only(np.asarray(array)) for array in arrays)
    require_equally_long("from_arrays", held)
    empty = len(held[0]) == 0
    require(not empty, "from_arrays", "the data set must not be empty", _shapes(held))
    return ArraySamples(held, "from_arrays")


def require_equally_long(where: str, arrays: Sequence[Column]) -> None:
    """Refuse arrays that do not have the same number of samples along a first axis."""
    axes = all(array.shape for array in arrays)
    require(axes, where, "arrays need a first axis, the samples", _shapes(arrays))
    lengths = {array.shape[0] for array in arrays}
    require(len(lengths) == 1, where, "arrays must be equally long", _shapes(arrays))


def _shapes(arrays: Sequence[Column]) -> str:
    return f"shapes {[array.shape for array in arrays]}"


def _require_alike(parts: Sequence[ArraySamples]) -> None:
    first = parts[0]
    for part in parts[1:]:
        if part.shapes(0) != first.shapes(0) or part.dtypes != first.dtypes:
            raise DataError(
                f"from_files: {part.file} has samples of {_kinds(part)}, {first.file} of "
                f"{_kinds(first)}: files of one data set must be alike"
            )


def _kinds(part: ArraySamples) -> str:
    pairs = zip(part.dtypes, part.shapes(0), strict=True)
    return ", ".join(f"{dtype.name} {list(shape[1:])}" for dtype, shape in pairs)
