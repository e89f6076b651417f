"""Shapes and types of a function's results, inferred without its numbers and cached."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from csrun.pytorch.record.torch_modes import unrecorded


class ResultShape:
    """Shape and type of a result, as a tensor without numbers."""

    __slots__ = ("is_view", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.is_view = tensor, tensor._base is not None


class _Draws(TorchDispatchMode):
    """Mode that detects operators which draw random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.found = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found |= torch.Tag.nondeterministic_seeded in func.tags
        return func(*args, **(kwargs or {}))


_known: dict[Any, tuple[TreeSpec, list[ResultShape]] | None] = {}


def result_shapes(func: Any, args: Any, kwargs: Any) -> tuple[TreeSpec, list[ResultShape]] | None:
    """Return shapes and types of a function's results; None if it must be computed at once."""
    flat, spec = tree_flatten((args, dict(kwargs)))
    key = (func, str(spec), *map(_key, flat))
    try:
        if key in _known:
            return _known[key]
    except TypeError:  # an argument of an unsupported type
        return _inferred(func, flat, spec)
    if len(_known) > 1000:
        _known.clear()
    _known[key] = _inferred(func, flat, spec)
    return _known[key]


def _key(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype
    if isinstance(leaf, slice):
        return slice, leaf.start, leaf.stop, leaf.step
    return type(leaf), leaf


def _inferred(func: Any, flat: list[Any], spec: Any) -> tuple[TreeSpec, list[ResultShape]] | None:
    args, kwargs = tree_unflatten(list(map(_fake_results, flat)), spec)
    try:
        with unrecorded(), torch.no_grad(), _Draws() as draws:
            leaves, found = tree_flatten(func(*args, **kwargs))
    except Exception:
        return None
    if draws.found or not leaves or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
        return None
    return found, [ResultShape(leaf) for leaf in leaves]


def _fake_results(leaf: Any) -> Any:
    """Return a tensor without values in place of a tensor, and its device."""
    if isinstance(leaf, torch.device) or (isinstance(leaf, str) and leaf == "cpu"):
        return torch.device("meta")
    if not isinstance(leaf, torch.Tensor):
        return leaf
    with torch._C.DisableTorchFunctionSubclass():
        return torch.empty(tuple(leaf.shape), dtype=leaf.dtype, device="meta")
