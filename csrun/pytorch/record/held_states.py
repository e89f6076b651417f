"""State of the optimizers of a group of models, whose tensors are the group's buffers."""

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from csrun.pytorch.errors import user_line
from csrun.pytorch.record.torch_modes import unrecorded
from csrun.pytorch.record.traced import TracedTensor

log = logging.getLogger("csrun")

_SEQUENCES = (list, tuple, deque)  # in which an optimizer may have tensors of its state


class StateEntry(NamedTuple):
    """A tensor in an optimizer's state of a parameter. path: keys and indices there.

    name: of its buffer, if it has one.
    """

    name: str
    parameter: torch.Tensor
    path: tuple[Any, ...]
    state: Any
    tensor: torch.Tensor

    @property
    def can_be_held(self) -> bool:
        """True for a tensor that a step computes with, not a count of steps on the host."""
        if not self.tensor.is_floating_point():
            return False
        if isinstance(self.tensor, TracedTensor):
            is_alike = self.tensor.dtype is self.parameter.dtype
            return is_alike and not self.tensor.requires_grad
        if self.tensor.dim() > 0:
            return True
        return self.tensor.shape == self.parameter.shape and str(self.path[0]) != "step"

    def put(self, tensor: torch.Tensor) -> None:
        """Replace the tensor."""
        _put(self.state, self.path, tensor)


class HeldStates:
    """Tensors of the optimizers' states that are buffers of a module, the root."""

    def __init__(self, root: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._root, self._optimizers = root, optimizers
        self._held: dict[str, tuple[torch.nn.Module, str]] = {}  # module and name there
        self._has_warned = False

    def hold(self, optimizer: torch.optim.Optimizer, states: Mapping[torch.Tensor, Any]) -> None:
        """Register the tensors of parameters' states that a step computes with as buffers."""
        own = {id(x) for x in (*self._root.parameters(), *self._root.buffers())}
        for entry in self._entries(optimizer, states):
            if id(entry.tensor) not in own and entry.can_be_held:
                own.add(id(entry.tensor))
                self._hold(entry.name, entry.tensor)

    def take_loaded(self, optimizer: torch.optim.Optimizer) -> None:
        """Take the values of tensors that `load_state_dict` has put in place of the buffers."""
        buffers = self._buffers()
        with unrecorded(), torch.no_grad():
            for entry in self._entries(optimizer, optimizer.state):
                buffer = buffers.get(entry.name)
                if buffer is not None and _kind(buffer) == _kind(entry.tensor):
                    buffer.copy_(entry.tensor)
                    entry.put(buffer)
        self.hold(optimizer, optimizer.state)

    def resolve(self, traced: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Replace tensors of the entries. traced: returns the tensor that one stands for."""
        for entry in self._all_entries():
            if (found := traced(entry.tensor)) is not entry.tensor:
                entry.put(found)

    def hold_new(self) -> bool:
        """Register buffers for values of the step, or tensors of other entries, that the optimizers
        have put into new entries; False if there are none.
        """
        buffers, entries = self._buffers(), self._all_entries()
        stay = _ids_in_place(entries, buffers)
        values = {id(x) for x in buffers.values()} - stay
        found: dict[int, StateEntry] = {}
        for entry in entries:
            is_value = isinstance(entry.tensor, TracedTensor) or id(entry.tensor) in values
            if is_value and entry.name not in buffers and entry.can_be_held:
                found.setdefault(id(entry.tensor), entry)
        for entry in found.values():
            with unrecorded():
                self._hold(entry.name, torch.zeros(entry.tensor.shape, dtype=entry.tensor.dtype))
        return bool(found)

    def take_replaced(self, copy: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """Make tensors that the optimizers have put in place of the buffers replace these in the
        modules, and give the optimizers the buffers back.

        copy: returns a copy that the step computes.
        """
        buffers, entries = self._buffers(), self._all_entries()
        stay, of_group = _ids_in_place(entries, buffers), {id(x) for x in buffers.values()}
        given: dict[int, torch.Tensor] = {}
        moved = [x for x in entries if id(x.tensor) in of_group - stay]
        for entry in (*moved, *(x for x in entries if isinstance(x.tensor, TracedTensor))):
            buffer = buffers.get(entry.name)
            if id(entry.tensor) in given:  # one tensor in two entries
                entry.put(given[id(entry.tensor)])
            elif buffer is not None and _kind(buffer) == _kind(entry.tensor):
                module, name = self._held[entry.name]
                module._buffers[name] = entry.tensor
                given[id(entry.tensor)] = buffer
                entry.put(buffer)
            elif not isinstance(entry.tensor, TracedTensor):
                entry.put(copy(entry.tensor))
        self._warn_of_others()

    def _warn_of_others(self) -> None:
        """Warn once of values of the step that the optimizers keep without a buffer."""
        kept = [vars(optimizer) for optimizer in self._optimizers]
        for path, tensor in () if self._has_warned else tensors_of_state(kept):
            if isinstance(tensor, TracedTensor):
                self._has_warned = True
                name = next(key for key in reversed(path) if isinstance(key, str))
                kind = str(tensor.dtype).removeprefix("torch.")
                log.warning(
                    f"{user_line()}: checkpoints do not contain {name!r} of the optimizer, a "
                    f"{kind} tensor, so a killed run cannot be resumed: keep it in the state of a "
                    "parameter, with the parameter's dtype and always of one shape"
                )
                return

    def _buffers(self) -> dict[str, torch.Tensor]:
        """Return the buffers by name."""
        found = ((name, m._buffers[key]) for name, (m, key) in self._held.items())
        return {name: buffer for name, buffer in found if buffer is not None}

    def _all_entries(self) -> list[StateEntry]:
        return [x for one in self._optimizers for x in self._entries(one, one.state)]

    def _entries(
        self, optimizer: torch.optim.Optimizer, states: Mapping[Any, Any]
    ) -> Iterator[StateEntry]:
        """Yield the tensors in the states of parameters."""
        number = self._optimizers.index(optimizer)
        names = {id(parameter): name for name, parameter in self._root.named_parameters()}
        for parameter, state in states.items():
            if (of := names.get(id(parameter))) is None:
                continue
            for path, tensor in tensors_of_state(state):
                name = ".".join((f"optimizer.{number}.{of}", *map(str, path)))
                yield StateEntry(name, parameter, path, state, tensor)

    def _hold(self, place: str, tensor: torch.Tensor) -> None:
        """Register a buffer."""
        *modules, name = place.split(".")
        at = self._root
        for each in modules:
            if each not in at._modules:
                at.add_module(each, torch.nn.Module())
            inner = at._modules[each]
            assert inner is not None, "added here"
            at = inner
        at.register_buffer(name, tensor)
        self._held[place] = at, name


def tensors_of_state(
    state: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """Yield the tensors in a parameter's state, with their keys and indices."""
    items = state.items() if isinstance(state, Mapping) else ()
    for key, value in enumerate(state) if isinstance(state, _SEQUENCES) else items:
        if isinstance(value, torch.Tensor):
            yield (*path, key), value
        elif isinstance(value, (Mapping, *_SEQUENCES)):
            yield from tensors_of_state(value, (*path, key))


def _ids_in_place(entries: Sequence[StateEntry], buffers: Mapping[str, torch.Tensor]) -> set[int]:
    """Return the ids of buffers that are in the entries of their names."""
    return {id(x.tensor) for x in entries if buffers.get(x.name) is x.tensor}


def _put(container: Any, path: Sequence[Any], tensor: torch.Tensor) -> Any:
    """Replace a tensor in a container; return this, or the new tuple in place of one."""
    key, *rest = path
    value = _put(container[key], rest, tensor) if rest else tensor
    if isinstance(container, tuple):
        items = [*container[:key], value, *container[key + 1 :]]
        return container._make(items) if hasattr(container, "_make") else tuple(items)
    container[key] = value
    return container


def _kind(tensor: torch.Tensor) -> tuple[torch.Size, torch.dtype]:
    return tensor.shape, tensor.dtype
