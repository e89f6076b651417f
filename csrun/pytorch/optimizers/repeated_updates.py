"""Numbers that an optimizer computes for its step, in steps that are not recorded.

The optimizer's own Python code runs without its tensors: each operator on them must be the one that
was recorded at this position, and returns a tensor without memory. Counts of steps and other
tensors of the host are computed.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record import update_numbers
from csrun.pytorch.record.arguments import leaves_of, written_by
from csrun.pytorch.record.in_place import out_of_place, without_out
from csrun.pytorch.record.recording import RecordedOperator, Recording, Ref
from csrun.pytorch.record.tensor_lists import is_of_lists, record_each
from csrun.pytorch.record.torch_modes import unrecorded

_TYPES = {torch.float32: np.float32, torch.float64: np.float64}


class OtherUpdateError(Exception):
    """The optimizer's step differs from the recorded one."""


def is_repeatable(optimizer: torch.optim.Optimizer) -> bool:
    """True for PyTorch's own optimizers, whose steps change no other object of the script."""
    return f"{type(optimizer).__module__}.".startswith("torch.optim.")


@dataclass(frozen=True, eq=False)
class _Entry:
    """A recorded operator. numbers: index of each argument that is a number of the step.

    made: tensors without memory, in place of its results.
    """

    call: Any
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]
    numbers: tuple[tuple[int, Ref, torch.dtype], ...]
    made: tuple[torch.Tensor | None, ...]

    def numbers_in(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[Any]:
        """Yield the numbers of a call. Raises: OtherUpdateError if its constants differ"""
        if len(args) != len(self.arguments) or kwargs != self.keywords:
            raise OtherUpdateError
        for known, given in zip(self.arguments, args, strict=True):
            if isinstance(known, Ref):
                continue
            if type(given) is not type(known) or given != known:
                raise OtherUpdateError
        for index, ref, dtype in self.numbers:
            yield ref, args[index], dtype


@dataclass(frozen=True, eq=False)
class _Writes:
    """In-place writes, as of a recorder."""

    mode: "UpdateNumbers"

    def record(self, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        return self.mode.record(None, func, args, kwargs)


class UpdateNumbers(TorchDispatchMode):
    """Mode in which a recorded step of an optimizer is repeated.

    operators: those of the step in the recording.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # its wrapper costs as much as an operator

    def __init__(self, recording: Recording, operators: slice) -> None:
        super().__init__()
        self._entries = list(_entries_of(recording, operators))
        self._without_memory = {id(x) for each in self._entries for x in each.made}
        self._own: Collection[int] = ()
        self._next = 0
        self._found: dict[Ref, torch.Tensor] = {}
        self._views: dict[int, torch.Tensor] = {}
        self.writes = _Writes(self)

    def of(self, step: Callable[[], Any], own: Collection[int]) -> dict[Ref, torch.Tensor]:
        """Return the numbers of an optimizer's step.

        own: ids of weights, gradients and states.

        Raises: OtherUpdateError if the step differs from the recorded one
        """
        self._own, self._next, self._found, self._views = own, 0, {}, {}
        with torch._C.DisableTorchFunction(), unrecorded(), self:
            step()
        if self._next != len(self._entries):
            raise OtherUpdateError
        return self._found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Compare an operator with the recorded one, or run it on tensors of the host."""
        kwargs = kwargs or {}
        if is_of_lists(func):
            return record_each(self, func, args, kwargs)
        if not any(map(self._is_of_wafer, leaves_of(args, kwargs))):
            return call_for_user(func, args, kwargs)
        func = update_numbers.overload_of_tensors(func)
        if update_numbers.has_number(func, kwargs):
            return update_numbers.record_scaled(self, func, args, kwargs)
        return self.record(None, func, args, kwargs)

    def _is_of_wafer(self, value: Any) -> bool:
        key = id(value)
        return key in self._own or key in self._without_memory or key in self._views

    def traced(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor itself."""
        return tensor

    def record(self, name: str | None, func: Any, args: Any, kwargs: Mapping[str, Any]) -> Any:
        """Take the numbers of the next operator, and return its results."""
        targets = written_by(func, args, kwargs) if func._schema.is_mutable else []
        if "out" in kwargs:
            func, kwargs = without_out(func), {n: x for n, x in kwargs.items() if n != "out"}
        elif targets and (plain := out_of_place(func, args)) is not None:
            func, args = plain
        if self._next == len(self._entries) or self._entries[self._next].call is not func:
            raise OtherUpdateError
        entry = self._entries[self._next]
        self._next += 1
        for ref, number, dtype in entry.numbers_in(tuple(args), kwargs):
            self._found[ref] = torch.from_numpy(np.array(number, _TYPES[dtype]))
        if targets:
            return targets[0] if len(targets) == 1 else targets
        made = self._new(entry.made) if entry.call.is_view else entry.made
        return made[0] if len(made) == 1 else made

    def _new(self, made: tuple[torch.Tensor | None, ...]) -> tuple[torch.Tensor | None, ...]:
        """Return other tensors of the same kinds: PyTorch makes a tensor a view only once."""
        found = tuple(None if x is None else torch.empty_like(x) for x in made)
        self._views |= {id(x): x for x in found if x is not None}
        return found


def _entries_of(recording: Recording, operators: slice) -> Iterator[_Entry]:
    places: dict[int, list[int]] = {}
    for place in recording.script_numbers:
        places.setdefault(place.operator, []).append(place.argument)
    for number in range(operators.start, operators.stop):
        op: RecordedOperator = recording.operators[number]
        found = [(n, op.arguments[n]) for n in places.get(number, ())]
        numbers = tuple((n, ref, recording.kind(ref).dtype) for n, ref in found)
        yield _Entry(op.call, op.arguments, op.keywords, numbers, _made(recording, op))


def _made(recording: Recording, op: RecordedOperator) -> tuple[torch.Tensor | None, ...]:
    kinds = [None if ref is None else recording.kind(ref) for ref in op.results]
    return tuple(
        None if x is None else torch.empty(x.shape, dtype=x.dtype, device="meta") for x in kinds
    )


@contextmanager
def options_as(optimizer: torch.optim.Optimizer, options: list[dict[str, Any]]) -> Iterator[None]:
    """Context manager in which an optimizer's groups have earlier options."""
    now = options_of(optimizer)
    _set_options(optimizer, options)
    try:
        yield
    finally:
        _set_options(optimizer, now)


def options_of(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of an optimizer's groups."""
    groups = optimizer.param_groups
    return [{name: x for name, x in group.items() if name != "params"} for group in groups]


def _set_options(optimizer: torch.optim.Optimizer, options: list[dict[str, Any]]) -> None:
    for group, known in zip(optimizer.param_groups, options, strict=True):
        group.update(known)


class HostState:
    """Tensors and numbers of an optimizer's state that the host computes, before a step.

    own: ids of tensors that the wafer computes.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, own: Collection[int]) -> None:
        with torch._C.DisableTorchFunction(), unrecorded():
            self._kept = [(state, _host_part(state, own)) for state in optimizer.state.values()]

    def restore(self) -> None:
        """Put them back."""
        for state, kept in self._kept:
            state.update(kept)


def _host_part(state: Mapping[str, Any], own: Collection[int]) -> dict[str, Any]:
    return {
        name: value.clone() if isinstance(value, torch.Tensor) else value
        for name, value in state.items()
        if id(value) not in own
    }
