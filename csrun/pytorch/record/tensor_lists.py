"""Operators on lists of tensors, `torch._foreach_*`: the operators on each tensor are recorded.

PyTorch's generic kernel calls them one after the other.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ANY_DEVICE = "CompositeExplicitAutograd"


@cache
def is_of_lists(func: Any) -> bool:
    """Return whether an operator is computed tensor by tensor."""
    if not func._schema.name.startswith("aten::_foreach_"):
        return False
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), _ANY_DEVICE))


def record_each(
    recorder: TorchDispatchMode, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Any:
    """Make the recorder record the operators that one on lists consists of."""
    with _dispatched_to(recorder):
        return func._op_dk(getattr(torch._C.DispatchKey, _ANY_DEVICE), *args, **kwargs)


@contextmanager
def _dispatched_to(mode: TorchDispatchMode) -> Iterator[None]:
    """Enter a mode again within its own dispatch."""
    TorchDispatchMode.__enter__(mode)
    try:
        yield
    finally:
        TorchDispatchMode.__exit__(mode, None, None, None)
