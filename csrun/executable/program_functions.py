"""Functions that a program's text calls: sums of squares, ratios of norms, pieces of loops."""

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
    """A function that gives, for each array, the sum of its values' squares, in float64.

    words: mantissa bits and bias of the 16-bit format that the arrays are words of

    Shapes: each array [n]; one array's sum does not depend on what others there are.
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
    """Factor of a gradient that leaves it at most `longest`.

    factor: by which it is scaled anyhow. squares: sum of its squares before that. A norm that is
    not a number reaches the weights.

    Source: tf.clip_by_norm
    """
    norm = factor * squares**0.5
    return factor if norm <= longest else factor * (longest / norm)


def total(numbers: Iterable[float]) -> float:
    """The sum, rounded once: the same in whatever order the numbers come."""
    try:
        # Not sum(): groups' squares come as tasks deliver them, and the clip must not depend on
        # that.
        return fsum(numbers)
    except OverflowError:
        # fsum raises where a sum of floats would be inf.
        return inf


MOST_KEPT_TILES = 256  # of a loop; with more of them, views are few compared with what is computed
Tile = tuple[slice | Array, ...]


def row_tiles(
    rows: int, tile: int, arrays: Sequence[Array], scratch: Sequence[Array]
) -> Iterable[Tile]:
    """The pieces of a loop over rows: where they are, their views of arrays and of scratch arrays.

    Of an array with fewer rows these come again and again; no piece goes over its end. A long
    loop's views are made again as it comes to them: those of billions of weights would take memory.

    Shapes: arrays [rows or a part of them, ...], scratch [tile, ...] -> views [tile, ...], the last
    ones shorter
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
