"""Constants, as a program's text has them."""

import zlib
from base64 import b64decode
from typing import Any

import numpy as np
import numpy.typing as npt


def unpacked(values: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """An array of base64 of its compressed bytes; nobody writes to it."""
    return np.frombuffer(zlib.decompress(b64decode(values)), dtype).reshape(shape)
