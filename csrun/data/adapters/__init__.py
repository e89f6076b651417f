"""What an iterable of another library tells of itself, without importing that library."""

from collections.abc import Callable, Iterator
from typing import Any

from csrun.data.adapters import grain, torch
from csrun.data.adapters.grain import RandomAccess
from csrun.data.operators import Operator

Kind = tuple[str, str]  # package and class

DESCRIBED: dict[Kind, Callable[[Any], tuple[Operator, ...]]] = {
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


def describe(iterable: Any) -> tuple[Operator, ...]:
    """The operators of a torch DataLoader, or of a grain data set or DataLoader, source first.

    Of anything else nothing is known: ().
    """
    known = next((DESCRIBED[kind] for kind in _kinds(iterable) if kind in DESCRIBED), None)
    return known(iterable) if known else ()


def indexed(iterable: Any) -> RandomAccess | None:
    """The items of a grain MapDataset, or the batches of a torch DataLoader, by number; None for
    what can be read in turn only.
    """
    known = next((INDEXED[kind] for kind in _kinds(iterable) if kind in INDEXED), None)
    return known(iterable) if known else None


def passes(iterable: Any) -> Callable[[int], Iterator[Any]]:
    """Begins the pass of a number; an unseeded torch DataLoader's in the order of the run's."""
    known = next((PASSES[kind] for kind in _kinds(iterable) if kind in PASSES), None)
    return (known(iterable) if known else None) or (lambda number: iter(iterable))


def _kinds(iterable: Any) -> Iterator[Kind]:
    """Its class and those above it, without importing anything."""
    for cls in type(iterable).__mro__:
        yield cls.__module__.partition(".")[0], cls.__name__
