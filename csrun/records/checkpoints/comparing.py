"""Comparison of two checkpoints, tensor by tensor."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import fsum, sqrt

import numpy as np

from csrun.records.checkpoints.folder_files import Array
from csrun.records.checkpoints.read import Checkpoint

PIECE = 1 << 18  # elements compared at a time, as float64


@dataclass(frozen=True)
class Comparison:
    """Comparison of a tensor of two checkpoints.

    problem: reason why it cannot be compared: missing in one, or another shape or type.
    max_abs: the largest |a - b|.
    relative: the norm of a - b over the larger of the norms of a and b, 0 if both are 0. Both are
        NaN if exactly one of two values is NaN anywhere.
    is_same: all bits are equal.
    """

    name: str
    problem: str | None = None
    max_abs: float = 0.0
    relative: float = 0.0
    is_same: bool = False


def compare(first: Checkpoint, second: Checkpoint) -> Iterator[Comparison]:
    """Compare all tensors of two checkpoints, those of the first in order, then the others.

    Raises: CsrunError naming the damage, if one is damaged
    """
    ours, theirs = first.manifest.tensors, second.manifest.tensors
    for name, entry in ours.items():
        if name not in theirs:
            yield Comparison(name, f"not in {second.path}")
        elif (other := theirs[name]).kind != entry.kind:
            yield Comparison(name, f"{entry.kind} in {first.path}, {other.kind} in {second.path}")
        else:
            yield _compared(name, first.tensor(name), second.tensor(name))
    for name in theirs:
        if name not in ours:
            yield Comparison(name, f"not in {first.path}")


def _compared(name: str, a: Array, b: Array) -> Comparison:
    a, b = a.reshape(-1), b.reshape(-1)
    if np.array_equal(a.view(np.uint8), b.view(np.uint8)):
        return Comparison(name, is_same=True)
    pieces = (slice(start, start + PIECE) for start in range(0, a.size, PIECE))
    found = [_measured(a[piece], b[piece]) for piece in pieces]
    max_abs = float(np.max([one.max_abs for one in found]))  # NaN is preserved
    norms = (fsum(one.squares_a for one in found), fsum(one.squares_b for one in found))
    larger, squared = max(norms), fsum(one.squared_difference for one in found)
    relative = sqrt(squared / larger) if squared else 0.0
    return Comparison(name, max_abs=max_abs, relative=relative)


@dataclass(frozen=True)
class _Measured:
    """Largest difference, and sums of squares of the differences and of the values."""

    max_abs: float
    squared_difference: float
    squares_a: float
    squares_b: float


def _measured(a: Array, b: Array) -> _Measured:
    """Measure arrays; equal infinities, and two NaN, differ by 0 and are excluded from the sums.

    Shapes: a, b [n]
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):  # inf - inf
        difference = np.abs(a - b)
    difference[same] = 0.0
    a, b = (np.where(same & ~np.isfinite(x), 0.0, x) for x in (a, b))
    return _Measured(float(difference.max()), *(float(x @ x) for x in (difference, a, b)))
