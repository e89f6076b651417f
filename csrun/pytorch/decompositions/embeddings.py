"""Rows of an embedding scaled down to a norm."""

from collections.abc import Callable, Mapping
from typing import Any

import torch


def embedding_renorm(
    weight: torch.Tensor, indices: torch.Tensor, max_norm: float, norm_type: float
) -> torch.Tensor:
    """Scale looked-up rows down to a norm, as PyTorch's kernel, which is not a composite."""
    ones = torch.ones(indices.numel(), dtype=weight.dtype)
    looked_up = torch.zeros(len(weight), dtype=weight.dtype).index_add(0, indices.flatten(), ones)
    norms = torch.linalg.vector_norm(weight, norm_type, 1)
    is_long = (looked_up > 0) & (norms > max_norm)
    return weight * torch.where(is_long, max_norm / (norms + 1e-7), 1.0)[:, None]


DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    torch.ops.aten.embedding_renorm.default: embedding_renorm
}
