"""Shapes and dtypes of the arrays of a batch."""

from collections.abc import Sequence

import msgspec

from csrun.data.errors import require
from csrun.data.samples import Batch


class ArraySpec(msgspec.Struct, frozen=True):
    """Shape and dtype of one array of a batch."""

    shape: tuple[int, ...]
    dtype: str


def specs_of(batch: Batch, names: Sequence[str]) -> tuple[ArraySpec, ...]:
    """Return shapes and dtypes of a batch's arrays, by name.

    Raises: DataError for arrays of different lengths, or that are not numeric
    """
    shapes = [array.shape for array in batch]
    is_valid = all(shapes) and len({shape[0] for shape in shapes}) == 1
    rule = "the arrays of a batch must have equal lengths, as batch() returns them"
    named = (f"{name} {shape}" for name, shape in zip(names, shapes, strict=True))
    require(is_valid, "input_fn", rule, f"shapes {', '.join(named)}")
    for name, array in zip(names, batch, strict=True):
        are_numbers = array.dtype.kind in "biufc"
        rule = f"{name} of a batch must hold numbers"
        require(are_numbers, "input_fn", rule, array.dtype.name)
    return tuple(ArraySpec(array.shape, array.dtype.name) for array in batch)
