"""shuffle: a permutation of what is read by number; a window over what comes in turn."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from csrun.data.errors import DataError, require
from csrun.data.flow import CHUNK, Chunks, Flow, Item, Source, in_chunks, in_turn
from csrun.data.indexed import Indexed, Order, Range
from csrun.data.operators import StageClock
from csrun.data.samples import Rows


def shuffled(source: Source, seed: int, window: int | None) -> tuple[Source, int | None]:
    """A source in another order each pass, and the window that it is shuffled in, None for all.

    A window over finite numbered data is not needed: they are shuffled as a whole.

    Raises: DataError for a stream, or endless data, without a window
    """
    if isinstance(source, Indexed) and (source.outer_order.length is not None or not window):
        length = source.outer_order.length
        require(length is not None, "shuffle", "shuffle before repeat", "endless data")
        return source.ordered(ShuffleOrder(source.outer_order, seed)), None
    if window is None:
        raise DataError(
            "shuffle: a stream is shuffled in a window: give the number of elements that fit "
            "into memory, as shuffle(seed, window=10_000)"
        )
    return ShuffleFlow(in_turn(source), window, seed), window


@dataclass(frozen=True)
class ShuffleOrder:
    """A full permutation of `below`, another one each pass."""

    below: Order
    seed: int

    @property
    def length(self) -> int | None:
        """Elements of one pass."""
        return self.below.length

    def numbers(self, epoch: int, start: int, stop: int) -> Rows:
        """The elements at positions start..stop-1 of pass `epoch`."""
        length = self.below.length or 0
        positions = permutation(self.seed, epoch, length)[start:stop]
        if isinstance(self.below, Range):
            return positions + epoch * length
        return self.below.numbers(epoch, 0, length)[positions]


@dataclass(frozen=True)
class ShuffleFlow:
    """A random one of `window` elements at a time, the next one takes its place.

    Source: D. Knuth, The Art of Computer Programming 2, 3.2.2, algorithm B (Bays and Durham)
    """

    below: Flow
    window: int
    seed: int

    def open(self, epoch: int, clock: StageClock) -> Chunks:
        """The elements in another order each pass, fixed by the seed."""
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
            rest = random_source(self.seed, epoch, stream=1).permutation(len(held))
            left = [held[place] for place in rest.tolist()]
        yield from in_chunks(iter(left), CHUNK)


@lru_cache(maxsize=2)  # a batch can cross the border between two passes
def permutation(seed: int, epoch: int, length: int) -> Rows:
    """The permutation of 0..length-1 that belongs to a seed and a pass."""
    order = random_source(seed, epoch).permutation(length)
    order.setflags(write=False)
    return order


def random_source(seed: int, epoch: int, stream: int = 0) -> np.random.Generator:
    """The random numbers that belong to a seed and a pass.

    Source: Salmon et al. 2011, Parallel random numbers: as easy as 1, 2, 3 (Philox)
    """
    key = np.array([seed, epoch], np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, stream]))


def _draws(seed: int, epoch: int, window: int) -> Iterator[int]:
    source = random_source(seed, epoch)
    while True:
        yield from source.integers(window, size=1024, dtype=np.int64).tolist()
