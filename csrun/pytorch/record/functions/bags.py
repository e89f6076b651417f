"""Reductions over bags of rows, whose sizes may depend on the batch: EmbeddingBag, segment_reduce.

Each takes PyTorch's arguments, and autograd decomposes it like the user's own lines.
"""

from typing import Any

import torch
from torch.nn import functional


def bag_of_rows(starts: Any, count: int) -> Any:
    """Return the number of each row's bag. Shapes: starts [B] -> [count]"""
    begun = torch.zeros(count + 1, dtype=torch.int64)  # the last one: of empty bags at the end
    begun = begun.scatter_add(0, starts.long(), torch.ones_like(starts, dtype=torch.int64))
    return begun[:count].cumsum(0) - 1


def _counts(rows: Any, bags: Any, count: int) -> Any:
    ones = torch.ones(len(rows), dtype=rows.dtype)
    found = torch.zeros(count, dtype=rows.dtype).index_add(0, bags, ones)
    return found.view(-1, *(1 for _ in rows.shape[1:]))


def _sums(rows: Any, bags: Any, count: int) -> Any:
    zeros = torch.zeros((count, *rows.shape[1:]), dtype=rows.dtype)
    return zeros.index_add(0, bags, rows)


def _reduced(rows: Any, bags: Any, count: int, empty: float, reduce: str) -> Any:
    """Return the extremum or product of each bag; that of an empty one is `empty`."""
    own = torch.full((count, *rows.shape[1:]), empty, dtype=rows.dtype)
    index = bags.view(-1, *(1 for _ in rows.shape[1:])).expand(rows.shape)
    return own.scatter_reduce(0, index, rows, reduce, include_self=False)


def embedding_bag(
    recorder: Any,
    input: Any,
    weight: Any,
    offsets: Any = None,
    max_norm: Any = None,
    norm_type: float = 2,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Sum, mean or maximum of the looked-up rows of each bag.

    Gradients by frequency are left to PyTorch, whose kernel divides by the counts of other rows.

    Shapes: input [B, size], or [N] with offsets [B] -> [B, D]
    """
    if scale_grad_by_freq or input.dim() != (1 if offsets is not None else 2):
        return NotImplemented
    options = {"max_norm": max_norm, "norm_type": norm_type, "sparse": sparse}
    rows = functional.embedding(input, weight, **options)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[..., None]
    if offsets is None and padding_idx is None:
        return (
            rows.max(1).values if mode == "max" else {"sum": rows.sum, "mean": rows.mean}[mode](1)
        )
    if offsets is None:
        count, size = input.shape
        bags = torch.arange(count).repeat_interleave(size)
    else:
        starts = offsets[:-1] if include_last_offset else offsets
        _require_begin(recorder, starts)
        count, bags = len(starts), bag_of_rows(starts, len(input))
    rows = rows.reshape(-1, rows.shape[-1])
    if padding_idx is None:
        return _of_bags(rows, bags, count, mode)
    padding = padding_idx % weight.shape[0]
    # padding goes into a bag of its own
    bags = torch.where(input.reshape(-1) == padding, count, bags)
    return _of_bags(rows, bags, count + 1, mode)[:count]


def _of_bags(rows: Any, bags: Any, count: int, mode: str) -> Any:
    if mode == "max":
        return _maxima(rows, bags, count)
    found = _sums(rows, bags, count)
    return found if mode == "sum" else found / _counts(rows, bags, count).clamp(min=1)


def _maxima(rows: Any, bags: Any, count: int) -> Any:
    """Return the maxima of bags, 0 of an empty one; of equal rows the first has the gradient."""
    size = len(rows)
    with torch.no_grad():
        most = _reduced(rows, bags, count, 0, "amax")
        places = torch.arange(size)[:, None].expand(rows.shape)
        places = places.masked_fill(rows < most.index_select(0, bags), size)  # not of a NaN
        first = _reduced(places, bags, count, size, "amin")
    zero = torch.zeros((1, *rows.shape[1:]), dtype=rows.dtype)
    return torch.cat([rows, zero]).gather(0, first)


def _require_begin(recorder: Any, starts: Any) -> None:
    """Raises: CaptureError for constant offsets of which the first is not 0, as in PyTorch"""
    if len(starts) and recorder.is_constant(starts) and (first := int(starts[0])):
        raise recorder.refusal(f"embedding_bag: offsets[0] must be 0, got {first}")


def segment_reduce(
    recorder: Any,
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    indices: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: Any = None,
) -> Any:
    """Reductions of consecutive rows; along other axes than the first they are left to PyTorch.

    Shapes: data [N, ...], lengths [B] or offsets [B + 1] -> [B, ...]
    """
    if axis or initial is not None or indices is not None:
        return NotImplemented
    starts = offsets[:-1] if lengths is None else lengths.cumsum(0) - lengths
    count, bags = len(starts), bag_of_rows(starts, len(data))
    if reduce == "sum":
        return _sums(data, bags, count)
    if reduce == "mean":
        return _sums(data, bags, count) / _counts(data, bags, count)
    name, empty = {
        "max": ("amax", -torch.inf),
        "min": ("amin", torch.inf),
        "prod": ("prod", 1.0),
    }[reduce]
    return _reduced(data, bags, count, empty, name)
