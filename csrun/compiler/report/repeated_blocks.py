"""Repeated blocks of a model, which the page folds: h/3 is one row until it is expanded."""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Generic, TypeVar

Item = TypeVar("Item")

_NUMBERED = re.compile(r"(?:[^/]+/)*?\d+(?=/)")


@dataclass(frozen=True)
class Fold(Generic[Item]):
    """Neighbours in a table: those of a block, or, without a name, some outside of blocks."""

    name: str | None
    members: tuple[Item, ...]


def folded(
    items: Sequence[Item], layers_of: Callable[[Item], Sequence[str]]
) -> tuple[Fold[Item], ...]:
    """Group the items of a table by block, in order; a single block is not folded."""
    runs = [
        Fold(name, tuple(run)) for name, run in groupby(items, lambda i: block_of(layers_of(i)))
    ]
    folds = [run if len(run.members) > 1 else Fold(None, run.members) for run in runs]
    if sum(fold.name is not None for fold in folds) < 2:
        return (Fold(None, tuple(items)),)
    return tuple(folds)


def block_of(layers: Sequence[str]) -> str | None:
    """Return the outermost numbered scope of all layers: h/3 for h/3/attn/q and h/3/mlp/up."""
    found = {match and match[0] for match in map(_NUMBERED.match, layers)}
    return found.pop() if len(found) == 1 else None
