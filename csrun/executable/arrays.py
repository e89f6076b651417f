"""Arrays in memory blocks: types, alignment and views."""

from collections.abc import Iterable
from math import prod

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


def view(memory: Bytes, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
    """Return an array in `memory` (uint8[n]) at a byte offset; no copy."""
    return memory[offset : offset + nbytes_of(shape, dtype)].view(dtype).reshape(shape)
