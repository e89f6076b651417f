"""Functions of gradients without values: shapes and types of results, and written arguments."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.utils._pytree import tree_leaves, tree_map

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.gradients.lazy_gradient import Gradient
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.step.loop_writes import is_write
from csrun.pytorch.step.tokens import LazyTensor


@dataclass(frozen=True)
class FakeResult:
    """Result of a function of gradients. written: arguments that it has written.

    is_view: the result shares the memory of a gradient among the arguments.
    """

    result: Any
    written: tuple[Gradient, ...]
    is_view: bool


def fake_call(
    func: Any, args: Any, kwargs: Any, gradient: Callable[[torch.Tensor], Gradient]
) -> FakeResult | None:
    """Return the result of a function; None if its shape or type depends on values.

    gradient: returns a new lazy gradient like a tensor.
    """
    fakes: dict[int, tuple[torch.Tensor, Gradient]] = {}

    def fake(leaf: Any) -> Any:
        if isinstance(leaf, LazyTensor):
            return torch.empty(tuple(leaf.shape), dtype=leaf.dtype)
        if not isinstance(leaf, Gradient):
            return leaf
        if id(leaf) not in fakes:
            fakes[id(leaf)] = torch.empty(tuple(leaf.shape), dtype=leaf.dtype), leaf
        return fakes[id(leaf)][0]

    def real(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor):
            return leaf
        same = next((g for made, g in fakes.values() if made is leaf), None)
        return gradient(leaf) if same is None else same

    mode = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        with unrecorded(), mode, torch.no_grad(), torch._C.DisableTorchFunctionSubclass():
            found = call_for_user(func, tree_map(fake, args), tree_map(fake, kwargs))
            memory = {made.untyped_storage()._cdata for made, _ in fakes.values()}
            new = [x for x in tree_leaves(found) if _is_new(x, fakes)]
            is_view = any(x.untyped_storage()._cdata in memory for x in new)
            first = tree_leaves(args[:1]) if is_write(func) else []
            written = {id(g): g for made, g in fakes.values() if made._version}
            written |= {id(leaf): leaf for leaf in first if isinstance(leaf, Gradient)}
            return FakeResult(tree_map(real, found), tuple(written.values()), is_view)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None


def _is_new(found: Any, fakes: dict[int, tuple[torch.Tensor, Gradient]]) -> bool:
    is_argument = any(made is found for made, _ in fakes.values())
    return isinstance(found, torch.Tensor) and not is_argument
