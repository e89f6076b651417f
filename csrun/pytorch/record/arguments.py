"""Arguments of ATen operators: tensors and numbers, some of them in lists."""

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

_NESTED = (list, tuple, dict)
_LIST = (list, tuple)
_flat: set[type] = set()  # types that have been found to be no containers


def leaves_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
    """Return the same as pytree's `tree_leaves((args, kwargs))`, in a tenth of its time."""
    found = [*args, *kwargs.values()]
    if all(map(_flat.__contains__, map(type, found))):
        return found
    given, found = found, []
    for argument in given:
        kind = type(argument)
        if kind in _LIST:
            found += leaves_of(argument, {})
        elif kind is dict:
            found += leaves_of((), argument)
        elif isinstance(argument, _NESTED):
            found += tree_leaves(argument)
        else:
            found.append(argument)
            _flat.add(kind)
    return found


def map_arguments(
    function: Callable[[Any], Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the same as pytree's `tree_map(function, (args, kwargs))`, in a tenth of its time."""
    found = {name: _mapped(function, each) for name, each in kwargs.items()}
    return tuple([_mapped(function, each) for each in args]), found


def _mapped(function: Callable[[Any], Any], argument: Any) -> Any:
    # A recursive function within `map_arguments` would be a cycle, and keep all it sees alive.
    if type(argument) in _LIST:
        return type(argument)([_mapped(function, each) for each in argument])
    if isinstance(argument, _NESTED):
        return tree_map(function, argument)
    return function(argument)


def written_by(func: Any, args: Any, kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operator writes in place."""
    found: list[Any] = []
    for place, name in _written_arguments(func):
        given = args[place] if place < len(args) else kwargs[name]
        found += given if type(given) in _LIST else (given,)
    return [t for t in found if isinstance(t, torch.Tensor)]


@cache
def _written_arguments(func: Any) -> tuple[tuple[int, str], ...]:
    """Return index and name of each argument that an operator writes."""
    declared = enumerate(func._schema.arguments)
    return tuple((n, a.name) for n, a in declared if a.alias_info and a.alias_info.is_write)


def tensors_in(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """Return the tensors among arguments, in order."""
    return [a for a in leaves_of(args, kwargs) if isinstance(a, torch.Tensor)]
