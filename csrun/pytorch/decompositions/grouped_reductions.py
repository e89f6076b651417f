"""Most frequent values, and reductions of the values that belong to one index."""

from collections.abc import Callable, Mapping
from typing import Any

import torch

Combine = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
_COMBINE: Mapping[str, Combine] = {
    "amax": torch.maximum,
    "amin": torch.minimum,
    "prod": torch.mul,
}


def _along(values: torch.Tensor, dim: int, like: torch.Tensor) -> torch.Tensor:
    """Return a vector as one along an axis. Shapes: [N] -> [1, ..., N, ..., 1]"""
    return values.view([-1 if d == dim else 1 for d in range(like.dim())])


def _changes(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Return whether each value of an axis but the first differs from the one before."""
    count = x.shape[dim] - 1
    return x.narrow(dim, 1, count) != x.narrow(dim, 0, count)


def mode(x: torch.Tensor, dim: int = -1, keepdim: bool = False) -> tuple[torch.Tensor, ...]:
    """Return the most frequent value, the smallest in a tie, and its last index."""
    if not x.dim():
        return x.clone(), torch.zeros((), dtype=torch.int64)
    dim %= x.dim()
    values, order = torch.sort(x, dim=dim, stable=True)
    numbers = _along(torch.arange(x.shape[dim]), dim, x).expand(x.shape)
    true = torch.ones_like(values.narrow(dim, 0, 1), dtype=torch.bool)
    changes = _changes(values, dim)
    is_first, is_last = torch.cat([true, changes], dim), torch.cat([changes, true], dim)
    first = torch.where(is_first, numbers, 0).cummax(dim).values
    counts = torch.where(is_last, numbers - first + 1, 0)
    best = counts.argmax(dim, keepdim=True)
    found = values.gather(dim, best), order.gather(dim, best)
    return found if keepdim else tuple(one.squeeze(dim) for one in found)


def _reduce_runs(
    keys: torch.Tensor, values: torch.Tensor, dim: int, combine: Combine
) -> torch.Tensor:
    """Return, for each value, the reduction of those of its key up to it. Equal keys are adjacent.

    Source: Hillis and Steele 1986, Data parallel algorithms
    """
    count, shift = keys.shape[dim], 1
    while shift < count:
        rest = count - shift
        is_same = keys.narrow(dim, shift, rest) == keys.narrow(dim, 0, rest)
        later = values.narrow(dim, shift, rest)
        combined = torch.where(is_same, combine(later, values.narrow(dim, 0, rest)), later)
        values = torch.cat([values.narrow(dim, 0, shift), combined], dim)
        shift *= 2
    return values


def scatter_reduce(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    """Reduce the values of each index: sum, mean, prod, amax or amin.

    Shapes: x [..., M, ...], index [..., N, ...], source at least as large as the index
    """
    if not x.dim():
        given = (one.reshape(1) for one in (x, index, source))
        own, places, values = given
        found = scatter_reduce(own, 0, places, values, reduce, include_self=include_self)
        return found.reshape(())
    if not index.numel():
        return x.clone()
    dim %= x.dim()
    for axis, size in enumerate(index.shape):  # the rest is unused
        source = source.narrow(axis, 0, size)
    zeros = torch.zeros_like(x)
    counts = zeros.scatter_add(dim, index, torch.ones_like(source))
    if reduce in ("sum", "mean"):
        total = zeros.scatter_add(dim, index, source)
        if include_self:
            total, counts = x + total, counts + 1
        total = total if reduce == "sum" else _divided(total, counts)
        return total if include_self else torch.where(counts > 0, total, x)
    keys, order = torch.sort(index, dim=dim, stable=True)
    combine = _COMBINE[reduce]
    reduced = _reduce_runs(keys, source.gather(dim, order), dim, combine)
    true = torch.ones_like(keys.narrow(dim, 0, 1), dtype=torch.bool)
    is_last = torch.cat([_changes(keys, dim), true], dim)
    found = zeros.scatter_add(dim, keys, torch.where(is_last, reduced, 0))
    return torch.where(counts > 0, combine(x, found) if include_self else found, x)


def _divided(total: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
    most = counts.clamp(min=1)
    if total.is_floating_point():
        return total / most
    return torch.div(total, most, rounding_mode="floor")


def index_reduce(
    x: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    source: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
) -> torch.Tensor:
    """Reduce the slices of each index: mean, prod, amax or amin.

    Shapes: x [..., M, ...], index [N], source [..., N, ...]
    """
    if x.dim():
        index = _along(index, dim % x.dim(), x).expand(source.shape)
    return scatter_reduce(x, dim, index, source, reduce, include_self=include_self)


aten = torch.ops.aten
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten.mode.default: mode,
    aten.scatter_reduce.two: scatter_reduce,
    aten.index_reduce.default: index_reduce,
}
