"""Several models that one step trains, with the state of their optimizers, as one model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from csrun.pytorch.record.traced import TracedTensor


class HeldState(NamedTuple):
    """A tensor of an optimizer's state, which is a buffer of the group.

    path: keys and indices in the state of a parameter.
    """

    optimizer: torch.optim.Optimizer
    parameter: torch.Tensor
    path: tuple[Any, ...]
    module: torch.nn.Module
    name: str

    @property
    def container(self) -> Any:
        """The dict or list that has the tensor; an empty dict if the optimizer has removed it."""
        return _container(self.optimizer.state.get(self.parameter, {}), self.path)


class ModelGroup(torch.nn.Module):
    """Models whose weights the step itself updates, with recorded optimizers.

    The models are named 0, 1 and so on. Weights and the optimizers' tensors are buffers of the
    step, which it reads and writes in any order.
    """

    def __init__(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> None:
        super().__init__()
        self.models, self.optimizers = tuple(models), tuple(optimizers)
        self._held: dict[str, HeldState] = {}
        for number, model in enumerate(models):
            self.add_module(str(number), model)
        self.take_forward()

    def take_forward(self) -> None:
        """Store the models' own forward, before a Session replaces it."""
        self._forwards = [model.forward for model in self.models]

    def forward(self, number: int, *args: Any, **kwargs: Any) -> Any:
        """Call one of the models."""
        return self._forwards[number](*args, **kwargs)

    def is_of(
        self, models: Sequence[torch.nn.Module], optimizers: Sequence[torch.optim.Optimizer]
    ) -> bool:
        """True if it consists of exactly these objects."""
        own, given = (*self.models, *self.optimizers), (*models, *optimizers)
        return len(own) == len(given) and all(x is y for x, y in zip(own, given, strict=True))

    @property
    def name_of(self) -> dict[int, str]:
        """Names of the parameters, by id."""
        return {id(parameter): name for name, parameter in self.named_parameters()}

    def hold_states(
        self, optimizer: torch.optim.Optimizer, states: Mapping[torch.Tensor, Any]
    ) -> None:
        """Register the tensors of parameters' states that a step computes with as buffers."""
        number, names = self.optimizers.index(optimizer), self.name_of
        for parameter, state in states.items():
            name = names[id(parameter)]
            for path, tensor in tensors_of_state(state):
                if _is_of_device(path[0], tensor, parameter):
                    place = ".".join((f"optimizer.{number}.{name}", *map(str, path)))
                    module, key = self._hold(place, tensor)
                    self._held[place] = HeldState(optimizer, parameter, path, module, key)

    def _hold(self, place: str, tensor: torch.Tensor) -> tuple[torch.nn.Module, str]:
        """Register a buffer; return its module and its name there."""
        *modules, name = place.split(".")
        at: torch.nn.Module = self
        for each in modules:
            if each not in at._modules:
                at.add_module(each, torch.nn.Module())
            at = at._modules[each]
        at.register_buffer(name, tensor)
        return at, name

    def take_replaced_states(self) -> None:
        """Make values of the step that an optimizer has put in place of its tensors replace the
        buffers, and give the optimizer its tensors back.
        """
        for state in self._held.values():
            container, key = state.container, state.path[-1]
            buffer, now = state.module._buffers[state.name], _entry(container, key)
            is_of_step = buffer is not None and isinstance(now, TracedTensor)
            if is_of_step and (now.shape, now.dtype) == (buffer.shape, buffer.dtype):
                state.module._buffers[state.name], container[key] = now, buffer


def _is_of_device(key: object, tensor: torch.Tensor, parameter: torch.Tensor) -> bool:
    """True for a tensor of a parameter's state that a step computes with, not a count of steps."""
    if not tensor.is_floating_point():
        return False
    return tensor.dim() > 0 or (tensor.shape == parameter.shape and key != "step")


def tensors_of_state(
    state: Any, path: tuple[Any, ...] = ()
) -> Iterator[tuple[tuple[Any, ...], torch.Tensor]]:
    """Yield the tensors in a parameter's state, with their keys and indices."""
    items = state.items() if isinstance(state, dict) else ()
    for key, value in enumerate(state) if isinstance(state, list) else items:
        if isinstance(value, torch.Tensor):
            yield (*path, key), value
        elif isinstance(value, dict | list):
            yield from tensors_of_state(value, (*path, key))


def wrapped_by(optimizer: torch.optim.Optimizer) -> Iterator[torch.optim.Optimizer]:
    """Yield the optimizers that an optimizer has as attributes, and those that they wrap."""
    for each in vars(optimizer).values():
        if isinstance(each, torch.optim.Optimizer):
            yield each
            yield from wrapped_by(each)


def _container(state: Any, path: tuple[Any, ...]) -> Any:
    """Return the dict or list in a state with the last key of a path; an empty dict if none."""
    for key in path[:-1]:
        state = _entry(state, key) or {}
    return state


def _entry(container: Any, key: Any) -> Any:
    """Return an entry of a dict or list; None if there is none."""
    try:
        return container[key]
    except (KeyError, IndexError):
        return None
