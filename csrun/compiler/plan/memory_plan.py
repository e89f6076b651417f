"""Static memory plan: the offset of each buffer in the arena, from its lifetime.

Buffers with disjoint lifetimes share memory. Lifetimes are counted in kernels, forward then
backward; outputs for the host live to the end of the step. A recomputed value that is not kept has
two lifetimes at the same offset.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from csrun.compiler.graph.array import Array
from csrun.compiler.kernels import Kernel
from csrun.executable import GRADIENT, INPUT, Buffer, aligned, nbytes_of


@dataclass
class Lifetime:
    """An array and its lifetime, as positions of kernels in the step.

    earlier: earlier lifetimes, between which other arrays may use its place.
    """

    array: Array
    first: int
    last: int
    earlier: tuple[tuple[int, int], ...] = ()

    @property
    def spans(self) -> tuple[tuple[int, int], ...]:
        """Lifetimes, in order."""
        return (*self.earlier, (self.first, self.last))

    @property
    def nbytes(self) -> int:
        """Size, rounded up to the alignment."""
        return aligned(nbytes_of(self.array.shape, self.array.dtype))

    def overlaps(self, other: "Lifetime") -> bool:
        """Return whether both are alive at some kernel."""
        return any(
            first <= end and start <= last
            for first, last in self.spans
            for start, end in other.spans
        )


def lifetimes(
    kernels: Sequence[Kernel],
    kept: Sequence[Array],
    weights: set[str],
    dropped: frozenset[str] = frozenset(),
) -> list[Lifetime]:
    """Return the lifetimes of all arena arrays of a step; `kept` are those that the host reads
    after it.

    The lifetime is that of the base: it begins with the first written part, and a reader of any
    view keeps the whole base alive. An array in `dropped` starts a new lifetime where its kernel
    runs again.

    Raises: ValueError for an array that is read before it is written, or a name of two arrays,
    which are compiler bugs
    """
    found: dict[str, Lifetime] = {}
    maker: dict[str, int] = {}
    for place, kernel in enumerate(kernels):
        for array in kernel.reads:
            if array.name.startswith(INPUT) or array.is_weight:
                continue
            if array.name not in found:
                raise ValueError(f"{kernel.kind} in {kernel.layer} reads {array.name} too early")
            found[array.name].last = place
        for array in (*kernel.writes, *kernel.scratch):
            if array.name.startswith(GRADIENT) and array.name[len(GRADIENT) :] in weights:
                continue
            lifetime = found.setdefault(array.name, Lifetime(array.base, place, place))
            is_first = maker.setdefault(array.name, id(kernel)) == id(kernel)
            if is_first and array.name in dropped and lifetime.last < place:
                lifetime.earlier = lifetime.spans
                lifetime.first = place
            if lifetime.array != array.base:
                raise ValueError(f"{array.name} of {kernel.layer}: {array} is not {lifetime.array}")
            lifetime.last = place
    for array in kept:
        found[array.name].last = len(kernels)
    return list(found.values())


def place(alive: Sequence[Lifetime], base: int) -> tuple[list[Buffer], int]:
    """Assign offsets from `base` on to all buffers, large ones first, each at the lowest free
    offset.

    Returns the buffers, in the order of their first use, and the end of the arena.
    Source: greedy by size, Pisarchyk and Lee 2020, Efficient memory management for deep neural net
    inference, section 5
    """
    placed = _PlacedLifetimes(sum(len(lifetime.spans) for lifetime in alive))
    offsets = {}
    for lifetime in sorted(alive, key=lambda lifetime: -lifetime.nbytes):
        offsets[lifetime.array.name] = placed.add(lifetime, base)
    buffers = [
        Buffer(a.name, offsets[a.name], a.shape, a.dtype)
        for a in (lifetime.array for lifetime in alive)
    ]
    return buffers, max((offsets[a.array.name] + a.nbytes for a in alive), default=base)


class _PlacedLifetimes:
    """Placed lifetimes, sorted by offset; one column per field, since deep models have
    thousands.
    """

    def __init__(self, most: int) -> None:
        self._count = 0
        self._columns = np.empty((4, most), np.int64)  # start, end, first, last

    def add(self, lifetime: Lifetime, base: int) -> int:
        """Reserve the lowest offset from `base` on that is free during an array's lifetime."""
        start, end, first, last = self._columns[:, : self._count]
        spans = ((first <= stop) & (last >= begin) for begin, stop in lifetime.spans)
        overlaps = np.logical_or.reduce(list(spans))
        # ends of the arrays that it must not overlap, for each of them
        taken = np.maximum.accumulate(np.concatenate(([base], end[overlaps])))
        gaps = np.flatnonzero(start[overlaps] >= taken[:-1] + lifetime.nbytes)
        offset = int(taken[gaps[0]] if len(gaps) else taken[-1])
        at = np.searchsorted(start, offset)
        for span in lifetime.spans:
            self._insert(at, (offset, offset + lifetime.nbytes, *span))
        return offset

    def _insert(self, place: np.intp, column: tuple[int, int, int, int]) -> None:
        rest = self._columns[:, place : self._count + 1]
        rest[:, 1:] = rest[:, :-1].copy()
        rest[:, 0] = column
        self._count += 1
