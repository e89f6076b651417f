"""Rows of an array, copied once: into new memory, or right where they are wanted."""

import numpy as np
import numpy.typing as npt

from csrun.data.formats.base import Array, Column

Rows = npt.NDArray[np.int64]


def gather(array: Column, rows: Rows, out: Array | None = None) -> Array:
    """`array[rows]` in new memory, or in `out`.

    Consecutive rows are one copy, and those of a file are one read. Views whose rows do not lie one
    after the other in memory (windows over tokens) are copied row by row: `np.take` would first
    copy all of them.

    Shapes: array [N, …], rows [B] -> [B, …]; out is of the same dtype
    """
    if not isinstance(array, np.ndarray):
        return _placed(array[rows], out)
    first = int(rows[0])
    if _consecutive(rows):
        source = array[first : first + len(rows)]
        return np.array(source) if out is None else _placed(source, out)
    if array.flags.c_contiguous:
        return np.take(array, rows, axis=0, out=out, mode="clip")  # `raise` would buffer
    if out is None:
        out = np.empty((len(rows), *array.shape[1:]), array.dtype)
    for place, row in enumerate(rows.tolist()):
        out[place] = array[row]
    return out


def each(array: Column, rows: Rows) -> list[Array]:
    """The rows one by one: views, or those of a file that were read at once."""
    if isinstance(array, np.ndarray):
        return [np.asarray(array[row]) for row in rows.tolist()]
    return [np.asarray(row) for row in array[rows]]


def _placed(source: Array, out: Array | None) -> Array:
    if out is None:
        return source
    np.copyto(out, source)
    return out


def _consecutive(rows: Rows) -> bool:
    count = len(rows)
    return bool(rows[-1] - rows[0] == count - 1 and (rows[1:] > rows[:-1]).all())
