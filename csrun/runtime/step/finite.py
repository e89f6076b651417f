"""Check that a state written to a checkpoint is finite.

Each piece is checked, summed and written while it is in the CPU's cache.
"""

from collections.abc import Collection, Iterator, Mapping
from functools import partial
from math import isfinite

import numpy as np

from csrun.executable.arrays import Array
from csrun.records.tensor_files import Blocks

PIECE_BYTES = 1 << 20  # fits the L2 cache of most CPUs


class NotFiniteError(Exception):
    """A tensor contains NaN or infinity; `name` is the tensor's."""

    def __init__(self, name: str) -> None:
        super().__init__(f"tensor {name} is not finite")
        self.name = name


def finite(
    state: Mapping[str, Array | Blocks], unchecked: Collection[str] = ()
) -> dict[str, Blocks]:
    """Wrap the tensors of a checkpoint; their `check` raises NotFiniteError.

    unchecked: names of tensors that may have any values.
    """
    found = {name: _as_blocks(tensor) for name, tensor in state.items()}
    return {name: b if name in unchecked else _checked(name, b) for name, b in found.items()}


def _checked(name: str, made: Blocks) -> Blocks:
    """Refuse a tensor after all of it has arrived: corrupted values are not the model's fault."""
    is_finite = True

    def make() -> Iterator[Array]:
        nonlocal is_finite
        is_finite = True
        for piece in made.make():
            # min and max are NaN if any value is, and need no temporary array.
            is_finite = is_finite and isfinite(piece.min()) and isfinite(piece.max())
            yield piece

    def check(crc32: int) -> None:
        made.check(crc32)
        if not is_finite:
            raise NotFiniteError(name)

    return Blocks(made.shape, made.dtype, make, check)


def _as_blocks(tensor: Array | Blocks) -> Blocks:
    if isinstance(tensor, Blocks):
        return tensor
    return Blocks(tensor.shape, tensor.dtype, partial(_pieces, tensor))


def _pieces(array: Array) -> Iterator[Array]:
    flat = array.reshape(-1)
    count = max(1, PIECE_BYTES // array.dtype.itemsize)
    for start in range(0, array.size, count):
        yield np.asarray(flat[start : start + count])
