"""Max unpooling: values at the places that a max pooling has found."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import torch


def max_unpool(
    x: torch.Tensor, indices: torch.Tensor, sizes: Sequence[int], *windows: Any
) -> torch.Tensor:
    """Zeros with values at indices of images; equal indices must have equal values, as in PyTorch.

    Shapes: x and indices [N, C, ...] or [C, ...] -> [N, C, *sizes] or [C, *sizes]
    """
    axes = len(sizes)
    places, values = (one.flatten(-axes) for one in (indices, x))
    zeros = torch.zeros((*x.shape[:-axes], prod(sizes)), dtype=x.dtype)
    total = zeros.scatter_add(-1, places, values)
    counts = zeros.scatter_add(-1, places, torch.ones_like(values))
    return (total / counts.clamp(min=1)).unflatten(-1, sizes)


aten = torch.ops.aten
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten.max_unpool2d.default: max_unpool,
    aten.max_unpool3d.default: max_unpool,
}
