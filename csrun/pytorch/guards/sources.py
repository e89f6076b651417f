"""Sources of the values that forward's Python reads: globals, closures, attributes, containers.

They are found in the code objects of forward and the functions it calls, without running them: an
attribute is a source if any of that code loads an attribute of its name.
"""

import sys
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch

from csrun.pytorch.errors import is_installed, is_users
from csrun.pytorch.guards.loads import loads_of
from csrun.pytorch.step.mutation_counters import HOOKS

MOST_ITEMS = 64  # elements of a container whose items are sources; a larger one is data
MOST_FUNCTIONS = 2000
DEEPEST = 5  # nesting depth of objects

_CONTAINERS = (dict, list, tuple, set, frozenset, deque)
_LEAVES = (torch.Tensor, np.ndarray, np.generic, torch.dtype, torch.device, Enum, ModuleType)


class SourceKind(Enum):
    """Kind of access to a source."""

    KEY = "the value of a dict's key"
    ATTRIBUTE = "an attribute of a class, a cell or an object with __slots__"
    ITEMS = "all items of a container"


@dataclass(frozen=True, eq=False)
class GuardSource:
    """One value that forward reads. name: for messages.

    is_of_module: an attribute or a hook of a module, whose changes ModuleSets counts, so that it
    need not be compared in each step.
    """

    kind: SourceKind
    owner: Any
    key: Any
    name: str
    is_of_module: bool = False

    def now(self) -> Any:
        """Return the current value; for a container a tuple of its items."""
        if self.kind is SourceKind.KEY:
            return self.owner.get(self.key)
        if self.kind is SourceKind.ATTRIBUTE:
            return getattr(self.owner, self.key, None)
        return items_of(self.owner)


def items_of(container: Any) -> tuple[Any, ...]:
    """Return a container's items, of a dict its keys and values."""
    if isinstance(container, dict):
        return (*container, *container.values())
    return tuple(container)


class SourceSearch:
    """Search for the sources of a model's forward. codes: the code objects that were followed."""

    def __init__(self, model: torch.nn.Module, forward: Callable[..., Any]) -> None:
        self.codes: dict[CodeType, None] = {}
        self._found: dict[tuple[int, Any], GuardSource] = {}
        self._functions: dict[int, FunctionType] = {}
        self._objects: dict[int, tuple[Any, str, int]] = {}
        self._names: set[str] = set()
        self._model = model
        for name, module in model.named_modules():
            self._add_object(module, f"model.{name}" if name else "model", 0)
        self._add_value(forward, "forward", 0)
        known = -1
        while known != (known := self._size()):
            self._search()

    def _size(self) -> int:
        return len(self._found) + len(self._functions) + len(self._objects) + len(self._names)

    def sources(self) -> list[GuardSource]:
        """Return all sources that were found."""
        return list(self._found.values())

    def _search(self) -> None:
        for function in list(self._functions.values()):
            self._search_function(function)
        for each, name, depth in list(self._objects.values()):
            self._search_object(each, name, depth)

    # Functions.

    def _add_function(self, function: FunctionType) -> None:
        if is_users(function.__code__.co_filename) and len(self._functions) < MOST_FUNCTIONS:
            self._functions.setdefault(id(function), function)

    def _add_function_of(self, value: Any) -> None:
        if isinstance(value, FunctionType):
            self._add_function(value)

    def _search_function(self, function: FunctionType) -> None:
        code = function.__code__
        loads = loads_of(code)
        self.codes[code] = None
        self._names.update(name for name in loads.attributes if not name.startswith("__"))
        scope = function.__globals__
        for name in loads.globals:
            if name not in scope:
                continue
            if is_installed(code.co_filename):  # its globals are constants
                self._add_function_of(scope[name])
            else:
                self._add(SourceKind.KEY, scope, name, name, scope[name], 0)
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
            try:
                value = cell.cell_contents
            except ValueError:  # a variable without a value so far
                continue
            self._add(SourceKind.ATTRIBUTE, cell, "cell_contents", name, value, 0)
        if not is_installed(code.co_filename):
            for name, value in _defaults(function):
                self._add_value(value, name, 1)

    # Values.

    def _add(
        self,
        kind: SourceKind,
        owner: Any,
        key: Any,
        name: str,
        value: Any,
        depth: int,
        of: bool = False,
    ) -> None:
        """Add a source, unless it is a definition, and follow its value."""
        if not _is_definition(value, name.rpartition(".")[2]):
            self._found.setdefault((id(owner), key), GuardSource(kind, owner, key, name, of))
        self._add_value(value, name, depth)

    def _add_value(self, value: Any, name: str, depth: int) -> None:
        if isinstance(value, FunctionType):
            self._add_function(value)
        elif isinstance(value, MethodType):
            self._add_value(value.__func__, name, depth)
            self._add_object(value.__self__, name, depth)
        elif isinstance(value, partial):
            for part in (value.func, *value.args, *value.keywords.values()):
                self._add_value(part, name, depth + 1)
        else:
            self._add_object(value, name, depth)

    def _add_object(self, value: Any, name: str, depth: int) -> None:
        if depth <= DEEPEST and id(value) not in self._objects and _is_followed(value):
            self._objects[id(value)] = value, name, depth

    def _search_object(self, value: Any, name: str, depth: int) -> None:
        if isinstance(value, _CONTAINERS):
            self._search_container(value, name, depth)
        elif isinstance(value, torch.nn.Module):
            self._search_module(value, name)
        elif isinstance(value, type):
            self._search_class(value, name, depth)
        else:
            self._search_plain(value, name, depth)

    def _search_container(self, value: Any, name: str, depth: int) -> None:
        if len(value) > MOST_ITEMS:
            return
        if not isinstance(value, tuple | frozenset):
            self._found.setdefault(
                (id(value), ...), GuardSource(SourceKind.ITEMS, value, ..., name)
            )
        for key, item in _keyed(value):
            self._add_value(item, f"{name}[{key!r}]", depth + 1)

    def _search_module(self, module: torch.nn.Module, name: str) -> None:
        attributes = vars(module)
        is_torchs = not is_users(_file_of(type(module)))
        for key in attributes if is_torchs else self._names.intersection(attributes):
            value = attributes[key]
            is_own = not key.startswith("_") or not is_torchs
            if is_own and key not in ("training", "forward") and not _is_structure(key, value):
                self._add(SourceKind.KEY, attributes, key, f"{name}.{key}", value, 1, of=True)
        for key in HOOKS:
            if (hooks := attributes.get(key)) is None:
                continue
            source = GuardSource(SourceKind.ITEMS, hooks, ..., f"{name}'s hooks", is_of_module=True)
            self._found.setdefault((id(hooks), ...), source)
            for hook in hooks.values():
                self._add_value(hook, f"a hook of {name}", 1)
        for parameter in module._parameters.values():
            for hook in _hooks_of(parameter):
                self._add_value(hook, f"a hook of {name}", 1)
        if not is_torchs:
            self._search_methods(type(module), name, {"forward"}, attributes)
        if (own := attributes.get("forward")) is not None and module is not self._model:
            self._add_value(own, f"{name}.forward", 1)

    def _search_plain(self, value: Any, name: str, depth: int) -> None:
        attributes = getattr(value, "__dict__", {})
        for key in self._names:
            if key in attributes:
                self._add(
                    SourceKind.KEY, attributes, key, f"{name}.{key}", attributes[key], depth + 1
                )
            elif _is_slot(getattr(type(value), key, None)):
                item = getattr(value, key, None)
                self._add(SourceKind.ATTRIBUTE, value, key, f"{name}.{key}", item, depth + 1)
            elif hasattr(type(value), key):
                self._search_inherited(value, key, name, depth)
        self._search_methods(type(value), name, {"__call__", "__getitem__", "__getattr__"})

    def _search_inherited(self, value: Any, key: str, name: str, depth: int) -> None:
        """Add a class attribute, which an instance attribute may shadow later."""
        found = next((vars(c)[key] for c in type(value).__mro__ if key in vars(c)), None)
        if not _is_code(found) and not is_installed(_file_of(type(value))):
            self._add(SourceKind.ATTRIBUTE, value, key, f"{name}.{key}", found, depth + 1)

    def _search_class(self, kind: type, name: str, depth: int) -> None:
        for each in kind.__mro__:
            if is_installed(file := _file_of(each)) or not is_users(file):
                continue
            for key in self._names.intersection(vars(each)):
                value = vars(each)[key]
                if _is_code(value):
                    self._add_value(_function_of(value), key, depth)
                else:
                    self._add(SourceKind.ATTRIBUTE, each, key, f"{name}.{key}", value, depth + 1)

    def _search_methods(
        self, kind: type, name: str, also: set[str], attributes: dict[str, Any] | None = None
    ) -> None:
        """Follow a class's methods. attributes: of a module, which may shadow the class's later."""
        for each in kind.__mro__:
            if not is_users(_file_of(each)):
                continue
            for key in (self._names | also).intersection(vars(each)):
                value = vars(each)[key]
                if _is_code(value):
                    self._add_value(_function_of(value), key, 1)
                elif attributes is not None and not key.startswith("__"):
                    self._add(SourceKind.ATTRIBUTE, each, key, f"{name}.{key}", value, 1)
                    if key not in attributes:
                        self._add(
                            SourceKind.KEY, attributes, key, f"{name}.{key}", None, 1, of=True
                        )


def _defaults(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """Yield the default values of arguments, with names for messages."""
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        yield f"a default of {function.__name__}", value


def _keyed(container: Any) -> Iterable[tuple[Any, Any]]:
    return container.items() if isinstance(container, dict) else enumerate(container)


def _hooks_of(parameter: torch.Tensor | None) -> Iterator[Any]:
    """Yield the hooks of a parameter's gradient."""
    names = "_backward_hooks", "_post_accumulate_grad_hooks"
    with torch._C.DisableTorchFunction():  # no call of the step's
        tables = [getattr(parameter, name, None) or {} for name in names]
    for hooks in tables:
        yield from hooks.values()


def _is_definition(value: Any, name: str) -> bool:
    """True if a name is that of an import or definition, which is assumed constant."""
    if isinstance(value, ModuleType):
        return True
    is_defined = isinstance(value, type | FunctionType) or callable(value)
    return is_defined and getattr(value, "__name__", None) == name


def _is_structure(key: str, value: Any) -> bool:
    """True if a module's attribute is one of nn.Module's own tables, which ModuleSets watches."""
    return isinstance(value, dict) and key.startswith("_")


def _is_code(value: Any) -> bool:
    return isinstance(value, FunctionType | property | classmethod | staticmethod) or callable(
        getattr(value, "__get__", None)
    )


def _function_of(value: Any) -> Any:
    if isinstance(value, property):
        return value.fget
    return getattr(value, "__func__", getattr(value, "func", value))


def _is_slot(value: Any) -> bool:
    return type(value).__name__ == "member_descriptor"


def _is_followed(value: Any) -> bool:
    """True if the search for plain values goes into an object."""
    if isinstance(value, _LEAVES):
        return False
    if isinstance(value, _CONTAINERS) and type(value).__module__ in ("builtins", "collections"):
        return True
    if isinstance(value, torch.nn.Module | SimpleNamespace | Namespace):
        return True
    return is_users(_file_of(value if isinstance(value, type) else type(value)))


def _file_of(kind: type) -> str:
    if kind.__module__ == "__main__":
        return "__main__"
    module = sys.modules.get(kind.__module__)
    return getattr(module, "__file__", None) or ""
