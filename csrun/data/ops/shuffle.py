"""shuffle: a permutation of indexable samples; a window over a stream."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from csrun.data.errors import DataError, require
from csrun.data.flow import CHUNK, Chunks, Flow, Item, Source, as_stream, in_chunks
from csrun.data.indexed import Indexed, Order
from csrun.data.input_operators import StageClock
from csrun.data.ops import shared_permutations
from csrun.data.samples import Rows

# The longest permutation that is held whole, each one as likely. A computed one of few elements is
# not uniform: of 8 it fails a chi-square test of pairs.
DRAWN_LENGTH = shared_permutations.LONGEST
ROUNDS = 8
CHUNK_POSITIONS = 1 << 13  # computed at a time: the data of a round stay in the L2 cache
KEPT_PERMUTATIONS = 2  # a batch can cross the border between two passes
# Name of the order in checkpoints; any change of the positions needs another name.
ORDER = f"philox, feistel-{ROUNDS} beyond {DRAWN_LENGTH}"


def shuffled(source: Source, seed: int, window: int | None) -> tuple[Source, int | None]:
    """Shuffle a source, and return it with its window, None for a global shuffle.

    Raises: DataError for a stream without a window, endless data, or a window over indexed data
    """
    if isinstance(source, Indexed):
        length = source.outer_order.length
        require(length is not None, "shuffle", "shuffle before repeat", "endless data")
        if window is not None:
            raise DataError(
                f"shuffle: window={window} is for streams, this data set is indexable: use "
                f"shuffle(seed={seed}), which shuffles all {length:,} elements without a buffer"
            )
        return source.ordered(ShuffleOrder(source.outer_order, seed)), None
    if window is None:
        raise DataError(
            "shuffle: a stream needs a window, the number of elements to buffer, as "
            "shuffle(seed, window=10_000)"
        )
    return ShuffleFlow(as_stream(source), window, seed), window


@dataclass(frozen=True)
class ShuffleOrder:
    """Permutation of `below`, another one in each pass.

    It does not depend on the number of streamers, each of which computes its own positions.
    """

    below: Order
    seed: int

    @property
    def length(self) -> int | None:
        """Elements per pass."""
        return self.below.length

    def at(self, epoch: int, positions: Rows) -> Rows:
        """Return the elements at these positions of a pass."""
        mixed = permutation(self.seed, epoch, self.below.length or 0)
        return self.below.at(epoch, mixed.at(positions))


class Permutation(Protocol):
    """Permutation of 0..length-1."""

    def at(self, positions: Rows) -> Rows:
        """Return the elements at these positions."""


@dataclass(frozen=True)
class DrawnPermutation:
    """Uniformly drawn permutation, stored."""

    order: shared_permutations.Order

    @staticmethod
    def of(random: np.random.Generator, length: int) -> "DrawnPermutation":
        return DrawnPermutation(random.permutation(length).astype(np.uint16))

    def at(self, positions: Rows) -> Rows:
        """Return the elements at these positions."""
        return self.order[positions].astype(np.int64)


@dataclass(frozen=True)
class ComputedPermutation:
    """Keyed bijection, computed at any position without the rest.

    A position is a pair of a row and a column, of `2^column_bits` columns, about √length of each.
    A Feistel network shifts each half by a random function of the other in turn, which is
    invertible, so the result is a bijection of rows · columns numbers. Those beyond the length, at
    most one in √length, are mapped again until they are not (cycle-walking). The functions are
    drawn tables: 1.7 MB for 10^8 elements, 17 MB for 10^10.

    Source: Black and Rogaway 2002, Ciphers with arbitrary finite domains, section 5 (generalized
    Feistel) and 4 (cycle-walking)
    """

    length: int
    rows: int
    column_bits: int
    tables: tuple[tuple[Rows, Rows], ...]

    @staticmethod
    def of(random: np.random.Generator, length: int) -> "ComputedPermutation":
        column_bits = round(math.log2(length) / 2)
        columns = 1 << column_bits
        rows = -(-length // columns)
        tables = []
        for turn in range(ROUNDS // 2):
            of_column = random.integers(rows, size=columns)
            of_row = random.integers(columns, size=rows)
            # Row numbers are not reduced between rounds, so they are below (turn + 2) · rows here:
            # a table repeated as often is cheaper than a modulo per round.
            tables.append((of_column, np.tile(of_row, turn + 2)))
        return ComputedPermutation(length, rows, column_bits, tuple(tables))

    def at(self, positions: Rows) -> Rows:
        """Return the elements at these positions."""
        if len(positions) <= CHUNK_POSITIONS:
            return self._walked(positions)
        parts = np.split(positions, range(CHUNK_POSITIONS, len(positions), CHUNK_POSITIONS))
        return np.concatenate([self._walked(part) for part in parts])

    def _walked(self, positions: Rows) -> Rows:
        found = self._mapped(positions)
        while (beyond := np.flatnonzero(found >= self.length)).size:
            found[beyond] = self._mapped(found[beyond])
        return found

    def _mapped(self, numbers: Rows) -> Rows:
        row = numbers >> self.column_bits
        column = numbers & ((1 << self.column_bits) - 1)
        for of_column, of_row in self.tables:
            # `clip` is fastest, and no index is out of range
            row += of_column.take(column, mode="clip")
            column ^= of_row.take(row, mode="clip")
        row -= row // self.rows * self.rows  # half the time of `%`
        row <<= self.column_bits
        row |= column
        return row


@dataclass(frozen=True)
class ShuffleFlow:
    """Stream that yields a random one of `window` buffered elements, replaced by the next.

    Source: D. Knuth, The Art of Computer Programming 2, 3.2.2, algorithm B (Bays and Durham)
    """

    below: Flow
    window: int
    seed: int

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """Open a pass; its order is fixed by the seed."""
        held: list[Item] = []
        draws = _draws(self.seed, epoch, self.window)
        for chunk in self.below.open(epoch, clock):
            with clock.timed("shuffle"):
                ready = []
                for item in chunk:
                    if len(held) < self.window:
                        held.append(item)
                        continue
                    place = next(draws)
                    ready.append(held[place])
                    held[place] = item
            if ready:
                yield ready
        with clock.timed("shuffle"):
            # A stream of its own, so that its draws do not repeat those of the window.
            rest = random_source(self.seed, epoch, stream=1).permutation(len(held))
            left = [held[place] for place in rest.tolist()]
        yield from in_chunks(iter(left), CHUNK)


@lru_cache(maxsize=KEPT_PERMUTATIONS)
def permutation(seed: int, epoch: int, length: int) -> Permutation:
    """Return the permutation of 0..length-1 of a seed and pass."""
    if length > DRAWN_LENGTH:
        return ComputedPermutation.of(random_source(seed, epoch), length)

    def draw() -> shared_permutations.Order:
        return DrawnPermutation.of(random_source(seed, epoch), length).order

    return DrawnPermutation(shared_permutations.SHARED.get(seed, epoch, length, draw))


def random_source(seed: int, epoch: int, stream: int = 0) -> np.random.Generator:
    """Return the random generator of a seed and pass.

    Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3 (Philox)
    """
    key = np.array([seed, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, stream]))


def _draws(seed: int, epoch: int, window: int) -> Iterator[int]:
    source = random_source(seed, epoch)
    while True:
        yield from source.integers(window, size=1024, dtype=np.int64).tolist()
