"""Shape rules of operators whose kernels take types that PyTorch's own rule refuses."""

from collections.abc import Callable, Mapping
from typing import Any

import torch


def grouped_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Products of groups: PyTorch's rule takes bfloat16 only, its kernel on a CPU float32, too."""
    if a.dim() == b.dim():
        groups = len(offs) if offs is not None and a.dim() == 2 else len(a)
        sizes = [groups, a.shape[-2], b.shape[-1]]
    else:
        sizes = [a.shape[-2], b.shape[-1]]
    return a.new_empty(sizes, dtype=out_dtype)


SHAPE_RULES: Mapping[Any, Callable[..., Any]] = {torch.ops.aten._grouped_mm.default: grouped_mm}
