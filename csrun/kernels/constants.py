"""Constant arrays of a program: in its text, or in separate files."""

import zlib
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.base.array_digests import digest_of, file_of
from csrun.base.errors import CsrunError


def unpacked(values: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Decode base64 text of compressed bytes to a read-only array."""
    return np.frombuffer(zlib.decompress(b64decode(values)), dtype).reshape(shape)


def loaded(program: str, digest: str) -> npt.NDArray[Any]:
    """Load the array from the file next to a program that is named by its digest.

    Raises: CsrunError for a file that is missing or has other bytes
    """
    path = Path(program).with_name(file_of(digest))
    try:
        array: npt.NDArray[Any] = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise CsrunError(
            f"{path}: cannot be read: {error}; remove its folder and run again"
        ) from error
    if digest_of(array) != digest:
        raise CsrunError(f"{path}: changed since the compile; remove its folder and run again")
    return array
