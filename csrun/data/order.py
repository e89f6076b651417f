"""In which order elements come: pure arithmetic on positions, no data touched.

An order is asked for the elements at positions start..stop-1 of one pass (epoch) over it. Element e
of pass p over a `Range` of n has the number p·n + e, so that a number names both what is read and
in which pass; what lies below (the batches of a shuffled data set) needs both.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


class Order(Protocol):
    """A sequence of element numbers. `length` is None for an endless one."""

    @property
    def length(self) -> int | None:
        """Elements of one pass."""

    def numbers(self, epoch: int, start: int, stop: int) -> Numbers:
        """The elements at positions start..stop-1 of pass `epoch`, int64[stop - start]."""


@dataclass(frozen=True)
class Range:
    """Elements in their own order."""

    length: int | None

    def numbers(self, epoch: int, start: int, stop: int) -> Numbers:
        """The elements at positions start..stop-1 of pass `epoch`."""
        first = epoch * (self.length or 0)
        return np.arange(first + start, first + stop, dtype=np.int64)


@dataclass(frozen=True)
class Shuffle:
    """A full permutation of `below`, another one each pass."""

    below: Order
    seed: int

    @property
    def length(self) -> int | None:
        """Elements of one pass."""
        return self.below.length

    def numbers(self, epoch: int, start: int, stop: int) -> Numbers:
        """The elements at positions start..stop-1 of pass `epoch`."""
        length = self.below.length or 0
        positions = permutation(self.seed, epoch, length)[start:stop]
        if isinstance(self.below, Range):
            return positions + epoch * length
        return self.below.numbers(epoch, 0, length)[positions]


@dataclass(frozen=True)
class Repeat:
    """`count` passes over `below`, one after the other; endless when None."""

    below: Order
    count: int | None

    @property
    def length(self) -> int | None:
        """Elements of one pass."""
        below = self.below.length
        return None if below is None or self.count is None else below * self.count

    def numbers(self, epoch: int, start: int, stop: int) -> Numbers:
        """The elements at positions start..stop-1 of pass `epoch`."""
        below = self.below.length
        if not below:
            return self.below.numbers(epoch, start, stop)
        earlier = epoch * (self.count or 0)
        passes = range(start // below, -(-stop // below))
        parts = [
            self.below.numbers(earlier + p, max(start - p * below, 0), min(stop - p * below, below))
            for p in passes
        ]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, np.int64), *parts])


@dataclass(frozen=True)
class Shard:
    """Every `count`-th element of `below`, from `index` on."""

    below: Order
    count: int
    index: int

    @property
    def length(self) -> int | None:
        """Elements of one pass."""
        below = self.below.length
        return None if below is None else len(range(self.index, below, self.count))

    def numbers(self, epoch: int, start: int, stop: int) -> Numbers:
        """The elements at positions start..stop-1 of pass `epoch`."""
        first, last = start * self.count + self.index, (stop - 1) * self.count + self.index
        return self.below.numbers(epoch, first, last + 1)[:: self.count]


@dataclass(frozen=True)
class FirstPass:
    """The elements of `below`'s pass 0 in every pass: what a cache keeps."""

    below: Order

    @property
    def length(self) -> int | None:
        """Elements of one pass."""
        return self.below.length

    def numbers(self, epoch: int, start: int, stop: int) -> Numbers:
        """The elements at positions start..stop-1 of any pass."""
        return self.below.numbers(0, start, stop)


@lru_cache(maxsize=2)  # a batch can cross the border between two passes
def permutation(seed: int, epoch: int, length: int) -> Numbers:
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
