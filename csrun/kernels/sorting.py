"""Order of values along an axis."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def argsort(x: Array, out: Array, dim: int, descending: bool) -> None:
    """Write the indices in the order of their values; of equal values the first comes first.

    Shapes: x, out [..., N, ...]
    """
    if not descending:
        out[...] = x.argsort(axis=dim, kind="stable")
        return
    order = np.flip(x, dim).argsort(axis=dim, kind="stable")
    np.subtract(x.shape[dim] - 1, np.flip(order, dim), out=out)
