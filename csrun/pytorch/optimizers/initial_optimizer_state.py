"""State of an optimizer before its first step; PyTorch creates it in that step."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from inspect import unwrap
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.arguments import written_by
from csrun.pytorch.record.held_states import tensors_of_state
from csrun.pytorch.record.model_group import wrapped_by

aten = torch.ops.aten
_UNINITIALIZED = {aten.empty, aten.empty_like, aten.empty_strided, aten.new_empty}
_TOLERANCES = {torch.float64: 1e-12}  # of two first steps; others 1e-6


def create_state(
    optimizer: torch.optim.Optimizer, params: Sequence[torch.Tensor]
) -> Mapping[torch.Tensor, Any] | None:
    """Make an optimizer create the state of parameters, which it does in their first step.

    It makes a step on zero gradients of these; everything that this writes is then reset. A first
    step from this state, on other weights and random numbers, must equal one without state.
    Otherwise, as where the state begins with the first gradient, the weights or random numbers,
    return the state, which the first step must create.
    """
    every = [optimizer, *wrapped_by(optimizer)]
    with _trial(every, params, _example_of) as run:
        run()
        expected = _values_of(every)
    had = [dict(one.state) for one in every]
    with _trial(every, params, torch.zeros_like, is_creation=True) as run:
        run()
        states: list[Any] = [one.state for one in every]
    for one, state in zip(every, states, strict=True):
        made = {p: x.at_first() for p, x in state.items() if isinstance(x, _FirstItems)}
        one.state.update(made)
    with _trial(every, params, _example_of) as run:
        run()
        is_equal = _are_equal(_values_of(every), expected)
    if is_equal:
        return None
    found = dict(optimizer.state)
    for one, before in zip(every, had, strict=True):
        one.state.clear()
        one.state.update(before)
    return found


@contextmanager
def _trial(
    optimizers: Sequence[torch.optim.Optimizer],
    params: Sequence[torch.Tensor],
    gradient: Callable[[torch.Tensor], torch.Tensor],
    is_creation: bool = False,
) -> Iterator[Callable[[], None]]:
    """Context manager that yields a step of the first optimizer, and then resets what it wrote.

    gradient: returns that of a parameter.
    is_creation: of the step that creates the state; without weight decay, which is a gradient.
    """
    groups = [group for one in optimizers for group in one.param_groups]
    every = {id(p): p for group in groups for p in group["params"]}.values()
    held = [(p, p.grad, p.data) for p in every]
    objects = _Contents([*groups, *(one.__dict__ for one in optimizers)])
    given, first = set(map(id, params)), _FirstValues()
    for parameter in every:
        parameter.grad = gradient(parameter.detach()) if id(parameter) in given else None
    for group in groups:
        group |= {"weight_decay": 0} if "weight_decay" in group and is_creation else {}
    for one in optimizers:
        copied = {p: _copied(x) for p, x in one.state.items()}
        one.state = _FirstItemsOfAll(
            {p: _FirstItems(x) if isinstance(x, dict) else x for p, x in copied.items()}
        )
    step = unwrap(type(optimizers[0]).step)

    def run() -> None:
        with torch.no_grad(), first:
            for parameter in () if is_creation else params:
                parameter.add_(_example_of(parameter))
            call_for_user(step, (optimizers[0],))

    try:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(int(is_creation))
            yield run
    finally:
        first.restore()
        objects.restore()
        for parameter, own_gradient, data in held:
            parameter.grad, parameter.data = own_gradient, data


def _example_of(parameter: torch.Tensor) -> torch.Tensor:
    """Return a gradient for a trial."""
    values = torch.linspace(-1, 1.5, parameter.numel(), dtype=parameter.dtype)
    return torch.zeros_like(parameter).copy_(values.reshape(parameter.shape))


def _values_of(optimizers: Sequence[torch.optim.Optimizer]) -> dict[Any, torch.Tensor]:
    """Return copies of all parameters and tensors of state, by their places."""
    found: dict[Any, torch.Tensor] = {}
    for number, one in enumerate(optimizers):
        for parameter, state in one.state.items():
            found |= {(number, id(parameter), *p): x for p, x in tensors_of_state(state)}
        found |= {id(p): p.detach() for group in one.param_groups for p in group["params"]}
    return {place: tensor.clone() for place, tensor in found.items()}


def _are_equal(first: Mapping[Any, torch.Tensor], second: Mapping[Any, torch.Tensor]) -> bool:
    if first.keys() != second.keys():
        return False
    pairs = ((first[place], second[place]) for place in first)
    return all(
        a.shape == b.shape
        and torch.allclose(a, b, rtol=_TOLERANCES.get(a.dtype, 1e-6), atol=0, equal_nan=True)
        for a, b in pairs
    )


def _copied(value: Any) -> Any:
    """Return a copy of lists, deques and dicts, with the same other objects."""
    if isinstance(value, dict):
        return {key: _copied(x) for key, x in value.items()}
    if type(value) is deque:
        return deque(map(_copied, value), value.maxlen)
    return [*map(_copied, value)] if type(value) is list else value


class _Contents:
    """Contents of dicts, and of the lists, deques and dicts in them."""

    def __init__(self, dicts: Sequence[dict[str, Any]]) -> None:
        inner = [x for each in dicts for x in each.values() if type(x) in (list, deque, dict)]
        self._dicts = [(x, dict(x)) for x in (*dicts, *inner) if isinstance(x, dict)]
        self._lists = [(x, list(x)) for x in inner if isinstance(x, list | deque)]

    def restore(self) -> None:
        """Restore the contents."""
        for each, before in self._dicts:
            each.clear()
            each.update(before)
        for items, values in self._lists:
            items.clear()
            items.extend(values)


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
        kept = (torch.Tensor, list, deque, dict)
        return {k: x if isinstance(x, kept) else self._first.get(k, x) for k, x in found}


class _FirstItemsOfAll(dict[Any, Any]):
    """State of an optimizer. Entries that are not dicts, such as a count, are its own numbers."""

    def __missing__(self, parameter: Any) -> _FirstItems:
        self[parameter] = made = _FirstItems()
        return made


class _FirstValues(TorchDispatchMode):
    """Mode that saves the values of tensors before the first write to each.

    The first value of a tensor without one, as of torch.empty, is the first one written.
    """

    def __init__(self) -> None:
        super().__init__()
        self._kept: dict[tuple[int, int], tuple[torch.Tensor, torch.Tensor, torch.Tensor]] = {}
        self._empty: dict[int, torch.Tensor] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        is_write = func._schema.is_mutable and torch.Tag.inplace_view not in func.tags
        for tensor in written_by(func, args, kwargs) if is_write else ():
            key = _memory(tensor), id(tensor)  # a step may assign to the .data of a tensor
            if key not in self._kept and not self._fill(tensor):
                self._kept[key] = tensor, tensor.detach(), tensor.detach().clone()
        found = call_for_user(func, args, kwargs)
        if func.overloadpacket in _UNINITIALIZED:
            self._empty[_memory(found)] = found
        return found

    def _fill(self, tensor: torch.Tensor) -> bool:
        """True if a tensor has no value yet. It is then about to get one, at least in part."""
        made = self._empty.get(_memory(tensor))
        if made is not None and tensor.numel() == made.numel():
            del self._empty[_memory(tensor)]
        return made is not None

    def restore(self) -> None:
        """Restore the initial values; a tensor that has another shape now was a temporary one."""
        with torch.no_grad():
            # aliases were written one after the other
            for tensor, written, value in reversed(self._kept.values()):
                if tensor.shape == value.shape:
                    written.copy_(value)


def _memory(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor shares with its aliases."""
    address: int = tensor.untyped_storage().data_ptr()
    return address
