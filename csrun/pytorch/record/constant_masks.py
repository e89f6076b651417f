"""Masks as indices whose values are constants: the places where they are true."""

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
#: Operators whose second argument are indices.
INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._unsafe_index_put.default,
    aten._index_put_impl_.default,
}
_TRUTHS = (torch.bool, torch.uint8)


def with_places(
    func: Any, args: tuple[Any, ...], is_constant: Callable[[torch.Tensor], bool]
) -> tuple[Any, ...]:
    """Return the arguments of an index with places for each mask that is a constant.

    A write that does not add keeps its mask, which has no place twice.
    """
    adds = func is aten.index.Tensor or (len(args) > 3 and args[3])
    if not adds:
        return args
    places: list[Any] = []
    for index in args[1]:
        is_mask = isinstance(index, torch.Tensor) and index.dtype in _TRUTHS
        places += index.nonzero(as_tuple=True) if is_mask and is_constant(index) else [index]
    return args[0], places, *args[2:]
