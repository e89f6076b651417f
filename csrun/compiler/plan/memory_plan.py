"""The static memory plan: where in the arena each buffer lies, from when it is alive.

Buffers whose lives do not overlap share memory. A life is counted in kernels, forward then
backward; what the host reads after the step lives to its end. What is made again, and not kept
meanwhile, lives twice in the same place.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import GRADIENT, INPUT
from csrun.compiler.kernels import Kernel
from csrun.executable import Buffer, aligned, nbytes_of


@dataclass
class Life:
    """An array and the kernels (their places in the step) between which it must be kept.

    earlier: the same of the times before, when others could have its place in between.
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

    def meets(self, other: "Life") -> bool:
        """Return whether both are alive at some kernel."""
        return any(
            first <= end and start <= last
            for first, last in self.spans
            for start, end in other.spans
        )


def lives(
    kernels: Sequence[Kernel],
    kept: Sequence[Array],
    weights: set[str],
    dropped: frozenset[str] = frozenset(),
) -> list[Life]:
    """The lives of all arena arrays of a step; `kept` are those that the host reads after it.

    A life is that of the base: it begins with the first part that is written, and whoever reads
    a view of it keeps all of it alive. One of those that are `dropped` begins anew where the kernel
    that makes it runs again.

    Raises: ValueError for an array that is read before anything wrote it, or a name of two arrays,
        which are compiler bugs.
    """
    found: dict[str, Life] = {}
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
            life = found.setdefault(array.name, Life(array.base, place, place))
            is_first = maker.setdefault(array.name, id(kernel)) == id(kernel)
            if is_first and array.name in dropped and life.last < place:
                life.earlier = life.spans
                life.first = place
            if life.array != array.base:
                raise ValueError(f"{array.name} of {kernel.layer}: {array} is not {life.array}")
            life.last = place
    for array in kept:
        found[array.name].last = len(kernels)
    return list(found.values())


def place(alive: Sequence[Life], base: int) -> tuple[list[Buffer], int]:
    """Offsets for all buffers from `base` on, large ones first, each at the lowest free place.

    Returns the buffers, in the order of their first use, and the end of the arena.
    Source: greedy by size, Pisarchyk and Lee 2020, Efficient memory management for deep neural net
    inference, section 5
    """
    placed = _PlacedLives(sum(len(life.spans) for life in alive))
    offsets = {}
    for life in sorted(alive, key=lambda life: -life.nbytes):
        offsets[life.array.name] = placed.add(life, base)
    buffers = [
        Buffer(a.name, offsets[a.name], a.shape, a.dtype) for a in (life.array for life in alive)
    ]
    return buffers, max((offsets[a.array.name] + a.nbytes for a in alive), default=base)


class _PlacedLives:
    """Lives that have their place, by its start: a column each, as deep models have thousands."""

    def __init__(self, most: int) -> None:
        self._count = 0
        self._columns = np.empty((4, most), np.int64)  # start, end, first, last

    def add(self, life: Life, base: int) -> int:
        """The lowest place from `base` on that is free while an array lives; it is taken."""
        start, end, first, last = self._columns[:, : self._count]
        spans = ((first <= stop) & (last >= begin) for begin, stop in life.spans)
        meets = np.logical_or.reduce(list(spans))
        # Up to where the arrays are that it must not meet, from each of them on.
        taken = np.maximum.accumulate(np.concatenate(([base], end[meets])))
        gaps = np.flatnonzero(start[meets] >= taken[:-1] + life.nbytes)
        offset = int(taken[gaps[0]] if len(gaps) else taken[-1])
        at = np.searchsorted(start, offset)
        for span in life.spans:
            self._insert(at, (offset, offset + life.nbytes, *span))
        return offset

    def _insert(self, place: np.intp, column: tuple[int, int, int, int]) -> None:
        rest = self._columns[:, place : self._count + 1]
        rest[:, 1:] = rest[:, :-1].copy()
        rest[:, 0] = column
        self._count += 1
