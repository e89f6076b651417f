"""Counters of what a loop sets in Parameters and modules, so that a step need not check each.

Reading `grad` or `requires_grad` of all parameters took a third of a step's time in the loop.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from inspect import unwrap
from operator import attrgetter
from typing import Any

import torch
from torch.autograd.function import _HookMixin
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from torch.utils.hooks import RemovableHandle

from csrun.pytorch.errors import call_for_user
from csrun.pytorch.record.reuse.autograd_graph import is_of_node

_TRAINS, _REQUIRES_GRAD = attrgetter("training"), attrgetter("requires_grad")
#: Methods of Parameters that set attributes: by assignment, by `del`, and PyTorch's own.
_SETTING = ("__setattr__", "__delattr__", "requires_grad_", "detach_")


class ParameterSets:
    """Counter of attributes that are set on any Parameter in the block.

    Attributes set by autograd are not counted: it sets `grad` only after the loop has set it to
    None.

    sees_all: whether all of the model's parameters are instances of nn.Parameter.
    set_data: called with a Parameter, its new `data` and a function that sets it.
    """

    def __init__(self, model: torch.nn.Module, set_data: Callable[..., None]) -> None:
        self.count, self._set_data = 0, set_data
        self.sees_all = all(issubclass(type(p), torch.nn.Parameter) for p in model.parameters())

    def is_as(self, seen: int) -> bool:
        """True if nothing was set since the counter had this value."""
        return self.count == seen and self.sees_all

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count while a Session's block runs."""
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
            if given[:1] == ("data",) and len(given) == 2:
                return self._set_data(parameter, given[1], partial(own, parameter, *given))
            return own(parameter, *given, **options)

        return count


class ModuleSets:
    """Counter of attributes and hooks of the model's modules that the loop changes.

    Forward may depend on them. Not counted are forward's own changes, tensors, and the settings of
    train() and eval(), which are compared elsewhere.

    last: name of the latest change.
    hooks: count of changes of hooks of parameters and autograd nodes, which change gradients and
        are not counted otherwise.
    seen, seen_hooks: the counts when forward last ran.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self.count, self.last, self.seen = 0, "", 0
        self.hooks = self.seen_hooks = 0
        self._is_forward = False
        self._own = set(map(id, model.modules()))
        self._model = model

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Count while a Session's block runs."""
        kind = torch.nn.Module
        own = kind.__setattr__

        @wraps(own)
        def count(module: torch.nn.Module, name: str, value: Any) -> None:
            is_loops = not self._is_forward and id(module) in self._own
            if is_loops and _changes_value(module, name, value):
                self.count, self.last = self.count + 1, name
            own(module, name, value)

        kind.__setattr__ = count
        try:
            with self._counted_hooks():
                yield
        finally:
            kind.__setattr__ = own

    @contextmanager
    def _counted_hooks(self) -> Iterator[None]:
        add, remove = RemovableHandle.__init__, RemovableHandle.remove
        register = _HookMixin._register_hook

        @wraps(add)
        def added(handle: RemovableHandle, hooks: Any, **options: Any) -> None:
            self._count_hook(hooks)
            add(handle, hooks, **options)

        @wraps(remove)
        def removed(handle: RemovableHandle) -> None:
            self._count_hook(handle.hooks_dict_ref())
            remove(handle)

        def registered(hooks: Any, hook: Any) -> Any:
            if self._is_forward:  # which registers them itself, and they are not noted
                return unwrap(register)(hooks, hook)
            self.hooks += 1
            return register(hooks, hook)

        RemovableHandle.__init__, RemovableHandle.remove = added, removed
        _HookMixin._register_hook = staticmethod(registered)
        try:
            yield
        finally:
            RemovableHandle.__init__, RemovableHandle.remove = add, remove
            _HookMixin._register_hook = staticmethod(register)

    def _count_hook(self, hooks: Any) -> None:
        if self._is_forward or hooks is None or any(hooks is of_all for of_all in _OF_ALL_MODULES):
            return
        if is_of_node(hooks) or _has_hooks(self._model.parameters(), hooks):
            self.hooks += 1
        elif _has_hooks(self._model.modules(), hooks):
            self.count, self.last = self.count + 1, "a hook"

    def of_forward(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """Return the model's forward, wrapped so that its own changes are not counted."""

        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.seen, self.seen_hooks, self._is_forward = self.count, self.hooks, True
            try:
                return call_for_user(forward, args, kwargs)
            finally:
                self._is_forward = False

        return run


def _has_hooks(owners: Iterable[Any], hooks: Any) -> bool:
    """True if a table of hooks belongs to one of the owners."""
    return any(hooks is getattr(owner, name, None) for owner in owners for name in HOOKS)


def _changes_value(module: torch.nn.Module, name: str, value: Any) -> bool:
    if name == "training" or isinstance(value, torch.Tensor):
        return False
    before = module.__dict__.get(name, _ABSENT)
    is_plain = type(before) is type(value) and isinstance(value, int | float | str)
    return before is not value and not (is_plain and before == value)


_ABSENT = object()
#: Tables of hooks of all modules, to which the recorder of a step adds its own.
_OF_ALL_MODULES = (_global_forward_pre_hooks, _global_forward_hooks)
#: Names of the tables of hooks of modules and parameters.
HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_post_accumulate_grad_hooks",
)


class Modes:
    """Modes of a model that a loop may switch: train() and eval() of modules, requires_grad, and
    whether autograd is on.
    """

    def __init__(self, model: torch.nn.Module, sets: ParameterSets) -> None:
        self._modules, self._parameters = list(model.modules()), list(model.parameters())
        self._sets, self._seen = sets, -1
        self._trains: list[bool] = []
        self._by_autograd: tuple[tuple[bool, ...], ...] = ()

    def __call__(self) -> tuple[bool, ...]:
        """Return the current modes, the same object while they are equal."""
        trains, sets = [*map(_TRAINS, self._modules)], self._sets
        if trains != self._trains or sets.count != self._seen or not sets.sees_all:
            self._trains, self._seen = trains, sets.count
            modes = (*trains, *map(_REQUIRES_GRAD, self._parameters))
            self._by_autograd = (*modes, False), (*modes, True)
        return self._by_autograd[torch.is_grad_enabled()]

    @contextmanager
    def trained_as(self, modes: tuple[bool, ...]) -> Iterator[None]:
        """Context manager that sets train() and eval() as in other modes, uncounted."""
        now = self()
        self._train(modes)
        try:
            yield
        finally:
            self._train(now)

    @contextmanager
    def kept_as(self, modes: tuple[bool, ...]) -> Iterator[None]:
        """Context manager that sets all that other modes consist of, except autograd."""
        now = self()
        self._set(modes)
        try:
            yield
        finally:
            self._set(now)

    def _set(self, modes: tuple[bool, ...]) -> None:
        self._train(modes)
        for parameter, is_trained in zip(
            self._parameters, modes[len(self._modules) :], strict=False
        ):
            if parameter.requires_grad != is_trained:
                parameter.requires_grad_(is_trained)

    def _train(self, modes: tuple[bool, ...]) -> None:
        for module, is_training in zip(self._modules, modes, strict=False):
            vars(module)["training"] = is_training

    def have_same_gradients(self, modes: tuple[bool, ...]) -> bool:
        """True if requires_grad is the same as in other modes."""
        first = len(self._modules)
        return self()[first:] == modes[first:]


def _put_back(kind: type, name: str, had: Any) -> None:
    if had is None:
        delattr(kind, name)
    else:
        setattr(kind, name, had)
