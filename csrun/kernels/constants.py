"""Constants embedded in a program's text."""

import zlib
from base64 import b64decode
from typing import Any

import numpy as np
import numpy.typing as npt


def unpacked(values: str, dtype: str, shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Read-only array of base64 text of its compressed bytes."""
    return np.frombuffer(zlib.decompress(b64decode(values)), dtype).reshape(shape)
