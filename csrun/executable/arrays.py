"""Arrays over memory: their types, alignment and views."""

from collections.abc import Iterable
from math import prod

import numpy as np
import numpy.typing as npt

from csrun.executable.stored_groups import Parameter

# A cache line, and the widest vector register of a CPU.
ALIGNMENT_BYTES = 64


def nbytes_of(shape: tuple[int, ...], dtype: str) -> int:
    return prod(shape) * np.dtype(dtype).itemsize


def aligned(nbytes: int) -> int:
    """Rounded up to the alignment of arrays."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def half_bytes(nbytes: int, states: Iterable[Parameter]) -> int:
    """Bytes of a group's weights as words, and of its states behind them, as float32.

    nbytes: of both as float32
    """
    return nbytes // 2 + sum(aligned(nbytes_of(p.shape, p.dtype)) for p in states)


Array = npt.NDArray[np.generic]

Bytes = npt.NDArray[np.uint8]

Batch = tuple[Array, ...]


def view(memory: Bytes, offset: int, shape: tuple[int, ...], dtype: str) -> Array:
    """An array over `memory` (uint8[n]) at a byte offset; no copy."""
    return memory[offset : offset + nbytes_of(shape, dtype)].view(dtype).reshape(shape)
