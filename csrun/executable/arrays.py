"""Arrays in memory blocks: types, alignment and views."""

from collections.abc import Iterable, Sequence
from itertools import count
from math import prod
from typing import Self

import numpy as np
import numpy.typing as npt

from csrun.executable.stored_groups import Parameter

# cache line, and widest vector register of a CPU
ALIGNMENT_BYTES = 64


def nbytes_of(shape: tuple[int, ...], dtype: str) -> int:
    return prod(shape) * np.dtype(dtype).itemsize


def aligned(nbytes: int) -> int:
    """Round up to the alignment of arrays."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def half_bytes(nbytes: int, states: Iterable[Parameter]) -> int:
    """Return the size of a group's weights as 16-bit words, followed by its states as float32.

    nbytes: size of both as float32.
    """
    return nbytes // 2 + sum(aligned(nbytes_of(p.shape, p.dtype)) for p in states)


Array = npt.NDArray[np.generic]

Bytes = npt.NDArray[np.uint8]

Batch = tuple[Array, ...]

_numbers = count()


class ReusedBatch(tuple[Array, ...]):
    """Batch whose arrays get other values in later steps, such as those of a slot of a ring.

    number: identifies it in this process.
    """

    number: int

    def __new__(cls, arrays: Iterable[Array]) -> Self:
        batch = super().__new__(cls, arrays)
        batch.number = next(_numbers)
        return batch


class SplitBatch(tuple[Array, ...]):
    """Batch in equal parts, each a batch of its own; it has no arrays of the whole batch."""

    parts: Sequence[Batch]

    def __new__(cls, parts: Sequence[Batch]) -> Self:
        batch = super().__new__(cls)
        batch.parts = parts
        return batch

    @property
    def whole(self) -> Batch:
        """A copy of the whole batch."""
        return tuple(map(np.concatenate, zip(*self.parts, strict=True)))


def empty(nbytes: int) -> Bytes:
    """Allocate aligned memory, uint8[nbytes].

    np.empty aligns to 16 bytes only, so that each vector of 64 bytes would be in two cache lines.
    """
    return _from_cache_line(np.empty(nbytes + ALIGNMENT_BYTES, np.uint8), nbytes)


def zeros(nbytes: int) -> Bytes:
    """Allocate aligned memory filled with zeros, uint8[nbytes]; a page takes memory when it is
    written.
    """
    return _from_cache_line(np.zeros(nbytes + ALIGNMENT_BYTES, np.uint8), nbytes)


def _from_cache_line(memory: Bytes, nbytes: int) -> Bytes:
    start = -memory.ctypes.data % ALIGNMENT_BYTES
    return memory[start : start + nbytes]


def view(memory: Bytes, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Return an array in `memory` (uint8[n]) at a byte offset; no copy."""
    return memory[offset : offset + nbytes_of(shape, dtype)].view(dtype).reshape(shape)
