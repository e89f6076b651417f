"""What a loop sets of Parameters, counted, so that a step need not look at each of them.

Reading `grad` or `requires_grad` of all parameters took a third of a step's time in the loop.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from operator import attrgetter
from typing import Any

import torch

_TRAINS, _REQUIRES_GRAD = attrgetter("training"), attrgetter("requires_grad")
#: Methods of Parameters that set attributes: by assignment, by `del`, and PyTorch's own.
_SETTING = ("__setattr__", "__delattr__", "requires_grad_", "detach_")


class ParameterSets:
    """How often an attribute of any Parameter has been set in the block.

    What autograd sets is not seen: it gives `grad` only where that was set to None before.
    sees_all: whether all of the model's are Parameters by their class, too.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.count = 0
        self.sees_all = all(issubclass(type(p), torch.nn.Parameter) for p in model.parameters())

    def is_as(self, seen: int) -> bool:
        """Whether nothing was set since it was so many."""
        return self.count == seen and self.sees_all

    @contextmanager
    def counted(self) -> Iterator[None]:
        """While a Session's block runs."""
        kind = torch.nn.Parameter
        with ExitStack() as stack:
            for name in _SETTING:
                stack.callback(_put_back, kind, name, kind.__dict__.get(name))
                setattr(kind, name, self._counting(getattr(kind, name)))
            yield

    def _counting(self, own: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(own)
        def count(parameter: Any, *given: Any, **options: Any) -> Any:
            self.count += 1
            return own(parameter, *given, **options)

        return count


class Modes:
    """What a loop may switch in a model: train() and eval() of its modules, requires_grad."""

    def __init__(self, model: torch.nn.Module, sets: ParameterSets) -> None:
        self._modules, self._parameters = list(model.modules()), list(model.parameters())
        self._sets, self._seen = sets, -1
        self._required: tuple[bool, ...] = ()

    def __call__(self) -> tuple[bool, ...]:
        """As they are now."""
        if not self._sets.is_as(self._seen):
            self._seen = self._sets.count
            self._required = tuple(map(_REQUIRES_GRAD, self._parameters))
        return (*map(_TRAINS, self._modules), *self._required)


def _put_back(kind: type, name: str, had: Any) -> None:
    if had is None:
        delattr(kind, name)
    else:
        setattr(kind, name, had)
