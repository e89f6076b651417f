"""Constant masks as indices: the positions where they are true."""

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
#: Operators whose second argument is indices.
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._unsafe_index_put.default,
    aten._index_put_impl_.default,
}
_TRUTHS = (torch.bool, torch.uint8)


def with_places(
    func: Any,
    args: tuple[Any, ...],
    is_constant: Callable[[torch.Tensor], bool],
    places_of: Callable[[torch.Tensor], Sequence[torch.Tensor] | None],
) -> tuple[Any, ...]:
    """Replace each constant mask in the arguments of an index by positions.

    Others have those of `places_of`, if there are any. A write of one number that does not add
    keeps its mask.
    """
    is_write_of_one = func is not aten.index.Tensor and args[2].numel() == 1
    if is_write_of_one and not (len(args) > 3 and args[3]):
        return args
    places: list[Any] = []
    for index in args[1]:
        is_mask = isinstance(index, torch.Tensor) and index.dtype in _TRUTHS
        if not is_mask:
            places.append(index)
        elif is_constant(index):
            places += index.nonzero(as_tuple=True)
        else:
            places += places_of(index) or [index]
    return args[0], places, *args[2:]
