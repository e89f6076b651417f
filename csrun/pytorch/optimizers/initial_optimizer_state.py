"""State of an optimizer before its first step; PyTorch creates it in that step."""

from collections.abc import Sequence
from inspect import unwrap
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.arguments import written_by


def create_state(optimizer: torch.optim.Optimizer, params: Sequence[torch.Tensor]) -> None:
    """Make an optimizer create the state of parameters, which it does in their first step.

    It makes a step on zero gradients of these; everything that this writes is then reset.
    """
    options = [dict(group) for group in optimizer.param_groups]
    every = [p for group in optimizer.param_groups for p in group["params"]]
    gradients, given = [p.grad for p in every], set(map(id, params))
    own, first = optimizer.state, _FirstValues()
    watched: Any = _FirstItemsOfAll({p: _FirstItems(state) for p, state in own.items()})
    for parameter in every:
        parameter.grad = torch.zeros_like(parameter) if id(parameter) in given else None
    for group in optimizer.param_groups:
        group |= {"weight_decay": 0} if "weight_decay" in group else {}  # also a gradient
    optimizer.state = watched
    try:
        with torch.no_grad(), first:
            call_for_user(unwrap(type(optimizer).step), (optimizer,))
    finally:
        optimizer.state = own
        first.restore()
        for group, before in zip(optimizer.param_groups, options, strict=True):
            group.update(before)
        for parameter, gradient in zip(every, gradients, strict=True):
            parameter.grad = gradient
    own.update({parameter: items.at_first() for parameter, items in watched.items()})


class _FirstItems(dict[str, Any]):
    """State of one parameter, with the initial value of each number in it."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._first = dict(self)

    def __setitem__(self, key: str, value: Any) -> None:
        self._first.setdefault(key, value)
        super().__setitem__(key, value)

    def at_first(self) -> dict[str, Any]:
        """Return the state with the initial numbers, and the current tensors."""
        found = self.items()
        return {k: x if isinstance(x, torch.Tensor) else self._first.get(k, x) for k, x in found}


class _FirstItemsOfAll(dict[Any, _FirstItems]):
    def __missing__(self, parameter: Any) -> _FirstItems:
        self[parameter] = made = _FirstItems()
        return made


class _FirstValues(TorchDispatchMode):
    """Mode that saves the values of tensors before the first write to each."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func._schema.is_mutable:
            for tensor in written_by(func, args, kwargs):
                if id(tensor) not in self._kept:
                    self._kept[id(tensor)] = tensor, tensor.detach().clone()
        return call_for_user(func, args, kwargs)

    def restore(self) -> None:
        """Restore the initial values."""
        with torch.no_grad():
            for tensor, value in self._kept.values():
                tensor.copy_(value)
