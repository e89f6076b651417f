"""A state on its way into a checkpoint: looked at once, and refused if it is not finite.

A piece is checked, summed and written while it is in the processor's cache; one of a store on
another machine is sent once.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from math import isfinite

import numpy as np

from csrun.executable.bind import Array
from csrun.records.tensor_files import Blocks

PIECE_BYTES = 1 << 20  # fits the L2 cache of most


class NotFiniteError(Exception):
    """A tensor has a value that is no finite number; `name` is the tensor's."""

    def __init__(self, name: str) -> None:
        super().__init__(f"tensor {name} is not finite")
        self.name = name


def finite(state: Mapping[str, Array]) -> dict[str, Blocks]:
    """The tensors as a checkpoint takes them. What takes a piece raises NotFiniteError."""
    return {
        name: Blocks(array.shape, array.dtype, partial(_pieces, name, array))
        for name, array in state.items()
    }


def _pieces(name: str, array: Array) -> Iterator[Array]:
    flat = array.reshape(-1)
    count = max(1, PIECE_BYTES // array.dtype.itemsize)
    for start in range(0, array.size, count):
        piece = np.asarray(flat[start : start + count])
        if not (isfinite(piece.min()) and isfinite(piece.max())):
            raise NotFiniteError(name)
        yield piece
