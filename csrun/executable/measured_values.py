"""Ranges of the values that a program computes in a step, and their files.

A file is that of one minibatch in one step, a line of JSON a value: its number, and its counts, or
how much it is an overflow.
"""

from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import numpy as np
import numpy.typing as npt

from csrun.base.half_formats import WORD, HalfFormat
from csrun.base.half_ranges import RangeCounts, range_counts, widened

if TYPE_CHECKING:
    from csrun.executable.bind import StepState
    from csrun.executable.plan import MeasuredSteps

AnyArray = npt.NDArray[Any]

RANGES_FOLDER = "ranges"  # in the compile directory
_SUFFIX = ".ranges"


class Overflow(IntEnum):
    """Certainty of an overflow: minus infinity may be a mask's."""

    SURE = 0
    POSSIBLE = 1


class MeasuredValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A value by its number: its counts in a step that is measured, and whether it overflows."""

    number: int
    counts: RangeCounts | None = None
    overflow: Overflow | None = None


class ValueMeasurer:
    """Writer of the ranges of a program's values, into a folder.

    It looks for overflows in every step, and counts stored activations in those that are due.
    """

    def __init__(self, folder: Path, measured: "MeasuredSteps", half: HalfFormat) -> None:
        self._folder, self._every, self._half = folder, measured.every, half
        self._is_stored = [value.is_activation for value in measured.values]
        self._step, self._files = 0, list[Path]()  # of the newest step

    def __call__(self, step: "StepState", number: int, value: AnyArray) -> None:
        """Measure a value, as it is now."""
        counts = None
        if not (step.index + 1) % self._every and self._is_stored[number] and value.dtype == WORD:
            counts = range_counts(value, self._half)
        overflow = overflow_of(value, self._half)
        if counts is None and overflow is None:
            return
        measured = MeasuredValue(number, counts, overflow)
        with self._opened(step) as file:
            file.write(msgspec.json.encode(measured) + b"\n")

    def _opened(self, step: "StepState") -> BinaryIO:
        """Open the step's file; a step's before, which was not due, is not needed any more."""
        index = step.index + 1
        if index != self._step:
            for path in self._files if self._step % self._every else ():
                path.unlink(missing_ok=True)
            self._step, self._files = index, []
        path = self._folder / f"{index}-{step.batch}-{step.first_sample}{_SUFFIX}"
        if path in self._files:
            return open(path, "ab")
        self._files.append(path)
        self._folder.mkdir(exist_ok=True)
        return open(path, "wb")  # the step may have run in an earlier attempt


def overflow_of(value: AnyArray, half: HalfFormat) -> Overflow | None:
    """Find numbers that are not finite in a value; words are those of the format."""
    if value.dtype == WORD:
        if not np.any((value & half.infinity) == half.infinity):
            return None
        value = widened(value, half)
    if value.dtype.kind != "f" or not value.size:
        return None
    # min and max are NaN where one value is, and need no temporary array
    if not value.max() < np.inf:
        return Overflow.SURE
    return None if value.min() > -np.inf else Overflow.POSSIBLE


def measured_values(folder: Path, step: int) -> Iterator[MeasuredValue]:
    """The values of a step in a folder of a compile directory."""
    for path in sorted(folder.glob(f"{step}-*{_SUFFIX}")):
        for line in path.read_bytes().splitlines():
            yield msgspec.json.decode(line, type=MeasuredValue)


def remove_measured(folder: Path, last: int | None = None) -> None:
    """Remove the files of the steps up to `last`, or of all."""
    for path in folder.glob(f"*{_SUFFIX}"):
        if last is None or int(path.stem.partition("-")[0]) <= last:
            path.unlink(missing_ok=True)
