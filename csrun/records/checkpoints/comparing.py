"""Two checkpoints side by side, a tensor at a time."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from csrun.records.checkpoints.parts import Array
from csrun.records.checkpoints.read import Checkpoint

PIECE = 1 << 18  # values that are compared at once, as float64


@dataclass(frozen=True)
class Comparison:
    """A tensor of two checkpoints.

    problem: why there is nothing to compare: it is missing in one, or of another shape or type.
    max_abs, max_rel: the largest |a - b|, and |a - b| / max(|a|, |b|), which is 0 where both are 0;
    NaN where one of two values is no number. is_same: every bit is.
    """

    name: str
    problem: str | None = None
    max_abs: float = 0.0
    max_rel: float = 0.0
    is_same: bool = False


def compare(first: Checkpoint, second: Checkpoint) -> Iterator[Comparison]:
    """Every tensor that one of them has, those of the first in their order, then what is left.

    Raises: CsrunError naming the damage, when one is damaged
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
    found = [_largest(a[piece], b[piece]) for piece in pieces]
    max_abs, max_rel = np.max(found, axis=0)  # NaN stays
    return Comparison(name, max_abs=float(max_abs), max_rel=float(max_rel))


def _largest(a: Array, b: Array) -> tuple[float, float]:
    """The largest difference and relative difference of some values; equal infinities differ by 0.

    Shapes: a, b [n]
    """
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):  # inf - inf, inf / inf
        apart = np.abs(a - b)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        apart[same] = 0.0
        scale = np.maximum(np.abs(a), np.abs(b))
        relative = np.divide(apart, scale, out=np.zeros_like(apart), where=apart != 0)
    return float(apart.max()), float(relative.max())
