"""Decompositions of ATen operators without an emitter, in place of PyTorch's own, if it has one.

Each takes ATen's arguments and is written with PyTorch's functions, whose operators have emitters.
A file per family, each with a table `DECOMPOSITIONS`.
"""

from collections.abc import Callable, Mapping
from typing import Any

from csrun.base.families import families_of

#: Decomposition by ATen operator.
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    operator: function
    for family in families_of("csrun.pytorch.decompositions", "DECOMPOSITIONS")
    for operator, function in family.DECOMPOSITIONS.items()
}

__all__ = ["DECOMPOSITIONS"]
