"""Digests of arrays, by which files are named."""

from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt


def digest_of(array: npt.NDArray[Any]) -> str:
    """SHA-256 of an array: its type, its shape and its bytes, row by row."""
    digest = sha256(f"{array.dtype.str} {array.shape} ".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def file_of(digest: str) -> str:
    """Name of the file of an array."""
    return f"{digest}.npy"
