"""Sizes of arrays in a plan's memory."""

from math import prod

import numpy as np

ALIGNMENT_BYTES = 64


def nbytes_of(shape: tuple[int, ...], dtype: str) -> int:
    """Bytes of an array."""
    return prod(shape) * np.dtype(dtype).itemsize


def aligned(nbytes: int) -> int:
    """Rounded up to the alignment of arrays."""
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
