"""Rows of an array, copied once: into new memory, or right where they are wanted."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Rows = npt.NDArray[np.int64]


def gather(array: Array, rows: Rows, out: Array | None = None) -> Array:
    """`array[rows]` in new memory, or in `out`.

    Consecutive rows are one copy. Views whose rows do not lie one after the other in
    memory (windows over tokens) are copied row by row: `np.take` would first copy all of them.

    Shapes: array [N, …], rows [B] -> [B, …]; out is of the same dtype
    """
    first = int(rows[0])
    if _consecutive(rows):
        source = array[first : first + len(rows)]
        if out is None:
            return np.array(source)
        np.copyto(out, source)
        return out
    if isinstance(array, np.ndarray) and array.flags.c_contiguous:
        return np.take(array, rows, axis=0, out=out, mode="clip")  # `raise` would buffer
    if out is None:
        out = np.empty((len(rows), *array.shape[1:]), array.dtype)
    for place, row in enumerate(rows.tolist()):
        out[place] = array[row]
    return out


def _consecutive(rows: Rows) -> bool:
    count = len(rows)
    return bool(rows[-1] - rows[0] == count - 1 and (rows[1:] > rows[:-1]).all())
