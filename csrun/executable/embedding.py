"""Rows of a table by their numbers, and what becomes of their gradients, over given arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def lookup(table: Array, indices: Array, out: Array) -> None:
    """out[n] = table[indices[n]]; the indices have been checked.

    Shapes: table [V, D], indices [N], out [N, D]
    """
    np.take(table, indices, axis=0, out=out, mode="clip")


def add_up(grad: Array, indices: Array, out: Array, ordered: Array, padding: int) -> None:
    """For each row of `out` the sum of the gradients of those that its number stands for.

    The gradients are brought into the order of their rows, and each run of equal ones is added up.

    Shapes: grad, ordered [N, D], indices [N], out [V, D]; row `padding` gets none, -1 for no such
    """
    out[...] = 0
    if len(indices):
        order = np.argsort(indices, kind="stable")
        rows = indices[order]
        starts = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
        np.take(grad, order, axis=0, out=ordered, mode="clip")
        sums = ordered[: len(starts)]
        np.add.reduceat(ordered, starts, axis=0, out=sums)
        out[rows[starts]] = sums
    if padding >= 0:
        out[padding] = 0
