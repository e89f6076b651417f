"""Products of groups of rows, each group with a matrix of its own."""

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def grouped_mm(x: Array, matrices: Array, ends: Array, out: Array) -> None:
    """Multiply rows by the matrix of their group.

    Shapes: x [M, K], matrices [G, K, N], ends [G], out [M, N]
    """
    bounds = [0, *ends.tolist()]
    for matrix, (start, end) in zip(matrices, pairwise(bounds), strict=True):
        if end > start:
            np.matmul(x[start:end], matrix, out=out[start:end])
    out[bounds[-1] :] = 0


def grouped_outer(lhs: Array, rhs: Array, ends: Array, out: Array) -> None:
    """Multiply the columns of each group by its rows.

    Shapes: lhs [M, K], rhs [K, N], ends [G], out [G, M, N]
    """
    for product, (start, end) in zip(out, pairwise([0, *ends.tolist()]), strict=True):
        np.matmul(lhs[:, start:end], rhs[start:end], out=product)
