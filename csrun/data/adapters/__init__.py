"""Adapters for data sets of torch and grain, which import neither library."""

from collections.abc import Callable, Iterator
from typing import Any

from csrun.data.adapters import grain, torch
from csrun.data.adapters.grain import RandomAccess
from csrun.data.input_operators import InputOperator

Kind = tuple[str, str]  # package and class

DESCRIBED: dict[Kind, Callable[[Any], tuple[InputOperator, ...]]] = {
    ("torch", "DataLoader"): torch.describe,
    ("grain", "MapDataset"): grain.describe,
    ("grain", "IterDataset"): grain.describe,
    ("grain", "DataLoader"): grain.describe_loader,
}
INDEXED: dict[Kind, Callable[[Any], RandomAccess | None]] = {
    ("torch", "DataLoader"): torch.indexed,
    ("grain", "MapDataset"): grain.indexed,
}
PASSES: dict[Kind, Callable[[Any], Callable[[int], Iterator[Any]] | None]] = {
    ("torch", "DataLoader"): torch.passes,
}


def describe(iterable: Any) -> tuple[InputOperator, ...]:
    """Return the operators of a torch DataLoader, grain data set or grain DataLoader, source first.

    Anything else has none: ().
    """
    known = next((DESCRIBED[kind] for kind in _kinds(iterable) if kind in DESCRIBED), None)
    return known(iterable) if known else ()


def indexed(iterable: Any) -> RandomAccess | None:
    """Return the items of a grain MapDataset or batches of a torch DataLoader by index; None for an
    iterable that can only be read in sequence.
    """
    known = next((INDEXED[kind] for kind in _kinds(iterable) if kind in INDEXED), None)
    return known(iterable) if known else None


def passes(iterable: Any) -> Callable[[int], Iterator[Any]]:
    """Return a function that begins a pass, in the run's order for an unseeded torch DataLoader."""
    known = next((PASSES[kind] for kind in _kinds(iterable) if kind in PASSES), None)
    return (known(iterable) if known else None) or (lambda number: iter(iterable))


def _kinds(iterable: Any) -> Iterator[Kind]:
    """Names of an object's class and base classes, without importing anything."""
    for cls in type(iterable).__mro__:
        yield cls.__module__.partition(".")[0], cls.__name__
