"""Functions called by the text of programs: sums of squares, trust ratio, clipping, row tiles."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import fsum, inf

import numpy as np

from csrun.base.half_formats import HalfFormat
from csrun.executable.arrays import Array

SQUARES = 4096  # elements squared at a time, in float64


def sums_of_squares(
    arrays: Sequence[Array], words: tuple[int, int] | None = None
) -> Callable[[], list[float]]:
    """Return a function that returns the sum of squares of each array, in float64.

    words: mantissa bits and bias of the 16-bit format, if the arrays are words.

    Shapes: each array [n]; the sum of an array does not depend on the other arrays
    """
    scratch, widened = np.empty(SQUARES, np.float64), np.empty(SQUARES, np.float32)
    pieces = [[a[at : at + SQUARES] for at in range(0, len(a), SQUARES)] for a in arrays]
    half = None if words is None else HalfFormat("", *words)

    def squares(part: Array) -> float:
        product = scratch[: len(part)]
        if half is not None:
            half.widen(part, widened[: len(part)])
            part = widened[: len(part)]
        np.multiply(part, part, out=product, dtype=np.float64)
        return float(np.add.reduce(product))

    return lambda: [total(map(squares, parts)) for parts in pieces]


def trust_ratio(weights: float, update: float) -> float:
    """Ratio of the norms of a parameter and its update, from both sums of squares; 1 if one is 0.

    Source: You et al. 2020, algorithm 2
    """
    return (weights / update) ** 0.5 if weights > 0 and update > 0 else 1.0


def limited(factor: float, squares: float, longest: float) -> float:
    """Return the factor that scales a gradient by `factor` and clips its norm to `longest`.

    squares: sum of squares of the unscaled gradient. A NaN norm is not clipped, so it reaches the
    weights.


    Source: tf.clip_by_norm
    """
    norm = factor * squares**0.5
    return factor if norm <= longest else factor * (longest / norm)


def total(numbers: Iterable[float]) -> float:
    """Return the correctly rounded sum, which does not depend on the order of the numbers."""
    try:
        # Not sum(): the order in which tasks deliver their squares must not change the clip
        # factor.
        return fsum(numbers)
    except OverflowError:
        # fsum raises if the sum would be inf.
        return inf


MOST_KEPT_TILES = 256  # above this the time to create views is small compared with the loop's
Tile = tuple[slice | Array, ...]


def row_tiles(
    rows: int, tile: int, arrays: Sequence[Array], scratch: Sequence[Array]
) -> Iterable[Tile]:
    """Return the tiles of a loop over rows: each a slice, and views of arrays and scratch arrays.

    An array with fewer rows is repeated; no tile crosses its end. A long loop creates its views on
    each iteration, because those of billions of weights would take too much memory.

    Shapes: arrays [rows or a divisor of it, ...], scratch [tile, ...] -> views [tile, ...], the
    last ones shorter
    """
    if not rows:
        return ()
    tiles = _Tiles(rows, tile, arrays, scratch)
    return tiles if -(-rows // tile) > MOST_KEPT_TILES else list(tiles)


@dataclass(frozen=True, slots=True)
class _Tiles:
    rows: int
    tile: int
    arrays: Sequence[Array]
    scratch: Sequence[Array]

    def __iter__(self) -> Iterator[Tile]:
        span = min([self.rows, *map(len, self.arrays)])
        for first in range(0, self.rows, span):
            for at in range(first, first + span, self.tile):
                length = min(self.tile, first + span - at)
                yield (
                    slice(at, at + length),
                    *(a[at % len(a) :][:length] for a in self.arrays),
                    *(s[:length] for s in self.scratch),
                )
