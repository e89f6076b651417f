"""SHA-256 digests of arrays, used as file names."""

from hashlib import sha256
from typing import Any

import numpy as np
import numpy.typing as npt


def digest_of(array: npt.NDArray[Any]) -> str:
    """Return the SHA-256 of an array's type, shape and bytes in row-major order."""
    digest = sha256(f"{array.dtype.str} {array.shape} ".encode())
    digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def file_of(digest: str) -> str:
    """Return the file name of an array."""
    return f"{digest}.npy"
