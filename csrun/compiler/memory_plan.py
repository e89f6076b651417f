"""The static memory plan: where in the arena each buffer lies, from when it is alive.

Buffers whose lives do not overlap share memory. A life is counted in kernels, forward then
backward; what the host reads after the step lives to its end.
"""

from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from csrun.compiler.graph import GRADIENT, INPUT, Array
from csrun.compiler.kernels import Kernel
from csrun.executable import Buffer, aligned, nbytes_of


@dataclass
class Life:
    """An array and the kernels (their places in the step) between which it must be kept."""

    array: Array
    first: int
    last: int

    @property
    def nbytes(self) -> int:
        """Its size, rounded up to the alignment."""
        return aligned(nbytes_of(self.array.shape, self.array.dtype))

    def meets(self, other: "Life") -> bool:
        """Whether both are alive at some kernel."""
        return self.first <= other.last and other.first <= self.last


def lives(kernels: Sequence[Kernel], kept: Sequence[Array], weights: set[str]) -> list[Life]:
    """The lives of all arena arrays of a step; `kept` are those that the host reads after it.

    Raises: ValueError for an array that is read before anything wrote it, or a name of two arrays,
        which are compiler bugs.
    """
    found: dict[str, Life] = {}
    for place, kernel in enumerate(kernels):
        for array in kernel.reads:
            if array.name.startswith(INPUT) or array.name in weights:
                continue
            if array.name not in found:
                raise ValueError(f"{kernel.kind} in {kernel.layer} reads {array.name} too early")
            found[array.name].last = place
        for array in (*kernel.writes, *kernel.scratch):
            if array.name.startswith(GRADIENT) and array.name[len(GRADIENT) :] in weights:
                continue
            life = found.setdefault(array.name, Life(array, place, place))
            if life.array != array:
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
    placed: list[tuple[int, int, Life]] = []  # (start, end, life), by start
    for life in sorted(alive, key=lambda life: -life.nbytes):
        offset, nbytes = base, life.nbytes
        for start, end, other in placed:
            if start >= offset + nbytes:
                break
            if end > offset and life.meets(other):
                offset = end
        insort(placed, (offset, offset + nbytes, life), key=itemgetter(0))
    offsets = {life.array.name: start for start, _, life in placed}
    buffers = [
        Buffer(a.name, offsets[a.name], a.shape, a.dtype) for a in (life.array for life in alive)
    ]
    return buffers, max((end for _, end, _ in placed), default=base)
