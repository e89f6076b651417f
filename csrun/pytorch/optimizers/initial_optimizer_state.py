"""State of an optimizer before its first step; PyTorch creates it in that step."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import unwrap
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.arguments import written_by

Params = Sequence[torch.Tensor]


def with_wrapped(optimizer: torch.optim.Optimizer) -> list[torch.optim.Optimizer]:
    """Return an optimizer and those that it wraps, which have the state of its parameters."""
    found: list[torch.optim.Optimizer] = []
    rest = [optimizer]
    while rest:
        one = rest.pop()
        if all(one is not other for other in found):
            found.append(one)
            rest += [x for x in vars(one).values() if isinstance(x, torch.optim.Optimizer)]
    return found


@dataclass(frozen=True)
class InitialState:
    """Properties of a created state.

    of_gradients: ids of its numbers, tensors without an axis, that depend on gradients.
    is_other_first: whether a step from it differs from the step that creates it.
    """

    of_gradients: frozenset[int]
    is_other_first: bool


def create_state(optimizer: torch.optim.Optimizer, params: Params) -> InitialState:
    """Make an optimizer create the state of parameters, which it does in their first step."""
    trial = _Trial(optimizer, params)
    created = trial.step(torch.zeros_like, trial.without(params), has_decay=False)
    of_zeros = trial.values
    trial.step(_ramp, trial.without(params))
    first, of_ramp = [*trial.weights, *trial.values], trial.values
    for state, items in zip(trial.states, created, strict=True):
        state.update({parameter: each.at_first() for parameter, each in items.items()})
    trial.step(_ramp, trial.copied())
    other = [*trial.weights, *trial.values]
    leaves = [x for state in trial.states for p in params for x in _leaves(state, p)]
    each = zip(leaves, of_zeros, of_ramp, strict=False)
    return InitialState(
        frozenset(id(x) for x, before, after in each if _is_scalar(x) and before != after),
        len(first) != len(other) or not all(map(_is_equal, first, other)),
    )


class _Trial:
    """Steps of an optimizer on other gradients, whose writes are undone.

    states: those of the optimizer and the ones that it wraps. weights, values: of the parameters
    and of all leaves of their states after the last step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, params: Params) -> None:
        self._optimizer, self._params = optimizer, params
        self._all = with_wrapped(optimizer)
        self.states: list[Any] = [one.state for one in self._all]
        self.weights: list[Any] = []
        self.values: list[Any] = []

    def without(self, params: Params) -> list["_FirstItemsOfAll"]:
        """Return the states without those of parameters."""
        given = set(map(id, params))
        return [
            _FirstItemsOfAll({p: _FirstItems(x) for p, x in state.items() if id(p) not in given})
            for state in self.states
        ]

    def copied(self) -> list["_FirstItemsOfAll"]:
        """Return the states in other dicts."""
        return self.without(())

    def step(
        self,
        gradient: Callable[[torch.Tensor], torch.Tensor],
        states: "list[_FirstItemsOfAll]",
        *,
        has_decay: bool = True,
    ) -> "list[_FirstItemsOfAll]":
        """Call the optimizer's step with other states, and return these."""
        groups = [group for one in self._all for group in one.param_groups]
        options, numbers = [dict(group) for group in groups], [_numbers(one) for one in self._all]
        every = {id(p): p for group in groups for p in group["params"]}.values()
        gradients, given = [p.grad for p in every], set(map(id, self._params))
        first = _FirstValues()
        for parameter in every:
            parameter.grad = gradient(parameter.detach()) if id(parameter) in given else None
        for group in groups:  # decay is also a gradient
            group |= {"weight_decay": 0} if "weight_decay" in group and not has_decay else {}
        for one, state in zip(self._all, states, strict=True):
            one.state = state
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]), first:
                call_for_user(unwrap(type(self._optimizer).step), (self._optimizer,))
            self.weights = [p.detach().clone() for p in self._params]
            leaves = [x for state in states for p in self._params for x in _leaves(state, p)]
            self.values = [x.clone() if isinstance(x, torch.Tensor) else x for x in leaves]
        finally:
            first.restore()
            for one, state, own in zip(self._all, self.states, numbers, strict=True):
                one.state = state
                vars(one).update(own)
            for group, before in zip(groups, options, strict=True):
                group.clear()
                group.update(before)
            for parameter, before in zip(every, gradients, strict=True):
                parameter.grad = before
        return states


def _ramp(parameter: torch.Tensor) -> torch.Tensor:
    """Gradient whose elements differ."""
    return torch.linspace(-0.7, 1.3, parameter.numel(), dtype=parameter.dtype).view_as(parameter)


def _leaves(state: Mapping[Any, Any], parameter: torch.Tensor) -> list[Any]:
    return tree_flatten(dict(state[parameter]))[0] if parameter in state else []


def _numbers(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return {k: x for k, x in vars(optimizer).items() if isinstance(x, int | float | None)}


def _is_scalar(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and not value.dim()


def _is_equal(first: Any, other: Any) -> bool:
    if isinstance(first, torch.Tensor) and isinstance(other, torch.Tensor):
        same = first.shape == other.shape
        return same and bool(torch.equal(first.nan_to_num(), other.nan_to_num()))
    return type(first) is type(other) and bool(first == other)


class _FirstItems(dict[str, Any]):
    """State of one parameter, with the initial value of each item."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._first = dict(self)

    def __setitem__(self, key: str, value: Any) -> None:
        self._first.setdefault(key, value)
        super().__setitem__(key, value)

    def at_first(self) -> dict[str, Any]:
        """Return the state with the initial numbers and tensors."""
        return {k: self._first.get(k, x) for k, x in self.items()}


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
