"""Registration of the containers that forward returns as pytree nodes."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import register_pytree_node, tree_leaves


def register_containers(results: Any) -> None:
    """Register dataclasses and the user's dict classes, at any depth of the results."""
    while kinds := {type(leaf): None for leaf in tree_leaves(results) if _is_container(leaf)}:
        for kind in kinds:
            is_dict = issubclass(kind, dict)
            flat = _flatten_dict if is_dict else _flatten_dataclass
            register_pytree_node(
                kind, flat, partial(_unflatten_dict if is_dict else _unflatten_dataclass, kind)
            )


def _is_container(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor | type):
        return False
    return is_dataclass(leaf) or (isinstance(leaf, dict) and not getattr(leaf, "__dict__", None))


def _flatten_dict(given: Any) -> tuple[list[Any], tuple[Any, ...]]:
    return list(given.values()), tuple(given)


def _flatten_dataclass(given: Any) -> tuple[list[Any], tuple[str, ...]]:
    names = tuple(field.name for field in fields(given) if hasattr(given, field.name))
    return [getattr(given, name) for name in names], names


def _unflatten_dict(kind: type[Any], values: Iterable[Any], keys: Sequence[Any]) -> Any:
    base: Any = OrderedDict if issubclass(kind, OrderedDict) else dict
    made = base.__new__(kind)
    for key, value in zip(keys, values, strict=True):
        base.__setitem__(made, key, value)
    if is_dataclass(kind):  # as in an old ModelOutput, whose fields are its items
        for field in fields(kind):
            object.__setattr__(made, field.name, made.get(field.name))
    return made


def _unflatten_dataclass(kind: type[Any], values: Iterable[Any], names: Sequence[str]) -> Any:
    made = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made
