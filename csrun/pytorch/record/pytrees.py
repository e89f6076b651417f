"""What forward gives besides tuples, lists and dicts: PyTorch's trees are to see what is in it."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import register_pytree_node, tree_leaves


def open_containers(results: Any) -> None:
    """Have trees see the values of dataclasses and of the user's own kinds of dict."""
    while kinds := {type(leaf): None for leaf in tree_leaves(results) if _is_container(leaf)}:
        for kind in kinds:
            is_dict = issubclass(kind, dict)
            flat = _of_dict if is_dict else _of_dataclass
            register_pytree_node(kind, flat, partial(_dict if is_dict else _dataclass, kind))


def _is_container(leaf: Any) -> bool:
    if isinstance(leaf, torch.Tensor | type):
        return False
    return is_dataclass(leaf) or (isinstance(leaf, dict) and not getattr(leaf, "__dict__", None))


def _of_dict(given: Any) -> tuple[list[Any], tuple[Any, ...]]:
    return list(given.values()), tuple(given)


def _of_dataclass(given: Any) -> tuple[list[Any], tuple[str, ...]]:
    names = tuple(field.name for field in fields(given) if hasattr(given, field.name))
    return [getattr(given, name) for name in names], names


def _dict(kind: type[Any], values: Iterable[Any], keys: Sequence[Any]) -> Any:
    own: Any = OrderedDict if issubclass(kind, OrderedDict) else dict
    made = own.__new__(kind)
    for key, value in zip(keys, values, strict=True):
        own.__setitem__(made, key, value)
    return made


def _dataclass(kind: type[Any], values: Iterable[Any], names: Sequence[str]) -> Any:
    made = object.__new__(kind)
    for name, value in zip(names, values, strict=True):
        object.__setattr__(made, name, value)
    return made
