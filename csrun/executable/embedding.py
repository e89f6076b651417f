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


def add_up(
    grad: Array, indices: Array, out: Array, ordered: Array, padding: int, adds: bool = False
) -> None:
    """For each row of `out` the sum of the gradients of those that its number stands for.

    The gradients are brought into the order of their rows, and each run of equal ones is added up.
    With `adds` the sums are added to what is there.

    Shapes: grad, ordered [N, D], indices [N], out [V, D]; row `padding` gets none, -1 for no such
    """
    if not adds:
        out[...] = 0
    if not len(indices):
        return
    order = np.argsort(indices, kind="stable")
    rows = indices[order]
    starts = np.flatnonzero(np.r_[True, rows[1:] != rows[:-1]])
    np.take(grad, order, axis=0, out=ordered, mode="clip")
    sums, found = ordered[: len(starts)], rows[starts]
    np.add.reduceat(ordered, starts, axis=0, out=sums)
    if padding >= 0:
        sums[found == padding] = 0
    out[found] = sums + out[found] if adds else sums
