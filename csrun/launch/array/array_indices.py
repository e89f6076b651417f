"""Indices of an array in Slurm's notation: `1-8`, `1,3,5`, `0-15:4`, `1-8%2`. Pure.

Source: sbatch(1), --array
"""

import re
from dataclasses import dataclass

from csrun.base.errors import UsageError

MOST_ELEMENTS = 1000  # of Slurm's default, MaxArraySize 1001
MOST_INDEX = 999_999
FORM = "indices as 1-8, 1,3,5 or 0-15:4, and %N for at most N at once"
_PART = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?", re.ASCII)
_LIMIT = re.compile(r"[1-9]\d{0,5}", re.ASCII)


@dataclass(frozen=True)
class ArrayIndices:
    """Indices of an array, in the given order; at_once: maximum number of concurrent elements."""

    indices: tuple[int, ...]
    at_once: int | None = None


def parse(text: str) -> ArrayIndices:
    """Parse the value of --array.

    Raises: UsageError for another form, a duplicate index, or too many
    """
    listed, percent, limit = text.partition("%")
    if percent and not _LIMIT.fullmatch(limit):
        raise UsageError(f"--array: %N must be a whole number >= 1, got {text!r}")
    indices: list[int] = []
    for part in listed.split(","):
        indices += _range(part, text)
        if len(indices) > MOST_ELEMENTS:
            raise UsageError(f"--array: must have at most {MOST_ELEMENTS} elements, got {text!r}")
    for at, index in enumerate(indices):
        if index in indices[:at]:
            raise UsageError(f"--array: index {index} is given twice in {text!r}")
    return ArrayIndices(tuple(indices), int(limit) if percent else None)


def _range(part: str, text: str) -> range:
    if (found := _PART.fullmatch(part)) is None:
        raise UsageError(f"--array: must be {FORM}, got {text!r}")
    first, last, step = (None if each is None else int(each) for each in found.groups())
    assert first is not None
    last = first if last is None else last
    step = 1 if step is None else step
    if last < first or step < 1:
        raise UsageError(f"--array: {part} is an empty range; write a range as 1-8 or 0-15:4")
    if last > MOST_INDEX:
        raise UsageError(f"--array: an index must be at most {MOST_INDEX}, got {last}")
    return range(first, last + 1, step)
