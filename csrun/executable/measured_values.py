"""Measured ranges of the values that a program computes in a step, and their files.

A file has the values of one minibatch of one step, one line of JSON per value: its number, and its
range counts or its kind of overflow.
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
    """Kind of an overflow; minus infinity may be a mask's."""

    SURE = 0
    POSSIBLE = 1


class MeasuredValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Measurement of a value, by number: its range counts in a measured step, and its overflow."""

    number: int
    counts: RangeCounts | None = None
    overflow: Overflow | None = None


class ValueMeasurer:
    """Writer of the value ranges of a program to files in a folder.

    Overflows are detected in every step; range counts of stored activations only in measured steps.
    """

    def __init__(self, folder: Path, measured: "MeasuredSteps", half: HalfFormat) -> None:
        self._folder, self._every, self._half = folder, measured.every, half
        self._is_stored = [value.is_activation for value in measured.values]
        self._step, self._files = 0, list[Path]()  # of the newest step

    def __call__(self, step: "StepState", number: int, value: AnyArray) -> None:
        """Measure a value."""
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
        """Open the step's file, and delete the file of the previous step if it was not a measured
        one.
        """
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
        return open(path, "wb")  # an earlier attempt may have run the step


def overflow_of(value: AnyArray, half: HalfFormat) -> Overflow | None:
    """Return the kind of non-finite numbers in a value; words are decoded by the format."""
    if value.dtype == WORD:
        if not np.any((value & half.infinity) == half.infinity):
            return None
        value = widened(value, half)
    if value.dtype.kind != "f" or not value.size:
        return None
    # min and max are NaN if any value is, and need no temporary array
    if not value.max() < np.inf:
        return Overflow.SURE
    return None if value.min() > -np.inf else Overflow.POSSIBLE


def measured_values(folder: Path, step: int) -> Iterator[MeasuredValue]:
    """Read the measurements of a step from a folder of a compile directory."""
    for path in sorted(folder.glob(f"{step}-*{_SUFFIX}")):
        for line in path.read_bytes().splitlines():
            yield msgspec.json.decode(line, type=MeasuredValue)


def remove_measured(folder: Path, last: int | None = None) -> None:
    """Delete the files of steps up to `last`, or of all steps."""
    for path in folder.glob(f"*{_SUFFIX}"):
        if last is None or int(path.stem.partition("-")[0]) <= last:
            path.unlink(missing_ok=True)
