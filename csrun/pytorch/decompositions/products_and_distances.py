"""Sums of matrix products, and distances of rows."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import torch


def addbmm(
    x: torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    beta: float = 1,
    alpha: float = 1,
) -> torch.Tensor:
    """beta x + alpha times the sum of the products of a batch.

    The sum over the batch is part of the product.

    Shapes: x broadcast to [M, N], a [B, M, K], b [B, K, N] -> [M, N]
    """
    wide = a.transpose(0, 1).reshape(a.shape[1], -1)
    found = wide @ b.reshape(-1, b.shape[2])
    found = found if alpha == 1 else found * alpha
    if not beta:
        return found
    return found + (x if beta == 1 else x * beta)


def _pairs(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    first, second = torch.triu_indices(count, count, 1).unbind()
    return first, second


def pdist(x: torch.Tensor, p: float = 2.0) -> torch.Tensor:
    """Distances of all pairs of rows. Shapes: [N, D] -> [N (N - 1) / 2]"""
    first, second = _pairs(len(x))
    return torch.linalg.vector_norm(x[first] - x[second], p, 1)


def pdist_backward(
    grad: torch.Tensor, x: torch.Tensor, p: float, distances: torch.Tensor
) -> torch.Tensor:
    """Gradient of `pdist`, 0 for equal rows."""
    first, second = _pairs(len(x))
    difference, lengths = x[first] - x[second], distances.unsqueeze(1)
    if p in (0, 1):
        slope = difference.sign() * p
    elif p == 2:
        slope = difference / torch.where(lengths == 0, 1, lengths)
    elif p == inf:
        slope = difference.sign() * (difference.abs() == lengths)
    else:
        ratio = difference.abs() / torch.where(lengths == 0, 1, lengths)
        slope = torch.where(difference == 0, 0, difference.sign() * ratio ** (p - 1))
    added = slope * grad.unsqueeze(1)
    return torch.zeros_like(x).index_add(0, first, added).index_add(0, second, -added)


aten = torch.ops.aten
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten.addbmm.default: addbmm,
    aten._pdist_forward.default: pdist,
    aten._pdist_backward.default: pdist_backward,
}
