"""Adapter for torch DataLoaders, with one order of samples in all tasks of a run."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

import numpy as np

from csrun.data.adapters.grain import RandomAccess
from csrun.data.adapters.torch_batches import LoaderBatches, PassOrder
from csrun.data.input_operators import InputOperator, Level, name_of
from csrun.data.sharding import run_seed

IN_ORDER = "SequentialSampler"
WHOLE = "RandomSampler"
_TORCHS = ("torch.utils.data.sampler",)  # samplers that end and draw their order up front
STANDARD_COLLATE = ("default_collate", "default_convert")


def describe(loader: Any) -> tuple[InputOperator, ...]:
    """Return the operators of a DataLoader, source first."""
    return tuple(_operators(loader))


def _operators(loader: Any) -> Iterator[InputOperator]:
    yield InputOperator("DataLoader", Level.SAMPLE, _source(loader))
    if (sampler := _sampler(loader)) not in (None, IN_ORDER):
        options = {"kind": "whole" if sampler == WHOLE else sampler, "seed": _seed(loader)}
        yield InputOperator("shuffle", Level.SAMPLE, {**options, "window": None})
    if (batch_size := _batch_size(loader)) is not None:
        options = {"batch_size": batch_size, "drop_remainder": _drops(loader)}
        yield InputOperator("batch", Level.SAMPLE, options)
    if (function := name_of(loader.collate_fn)) not in STANDARD_COLLATE:
        yield InputOperator("map", Level.BATCH, {"function": function, "num_parallel_calls": None})
    if loader.num_workers:
        yield InputOperator("prefetch", Level.BATCH, _workers(loader))


def _source(loader: Any) -> dict[str, Any]:
    """Options of the source: the DataLoader's arguments, and properties of its data set."""
    data = loader.dataset
    sized = hasattr(data, "__len__") and not _iterates(loader)
    return {
        "iterable": type(loader).__name__,
        "dataset": type(data).__name__,
        "samples": len(data) if sized else None,
        "in_memory": type(data).__name__ == "TensorDataset",
        "transform": name_of(data.transform) if getattr(data, "transform", None) else None,
        "shuffle": {WHOLE: True, IN_ORDER: False}.get(_sampler(loader) or ""),
        "seeded": loader.generator is not None,
        "drop_last": _drops(loader),
        "num_workers": loader.num_workers,
        "persistent_workers": loader.persistent_workers,
    }


def _workers(loader: Any) -> dict[str, Any]:
    factor = loader.prefetch_factor
    return {
        "ahead": loader.num_workers * factor,
        "num_workers": loader.num_workers,
        "prefetch_factor": factor,
    }


def _iterates(loader: Any) -> bool:
    """True for an IterableDataset, which has its own order."""
    return any(cls.__name__ == "IterableDataset" for cls in type(loader.dataset).__mro__)


def _sampler(loader: Any) -> str | None:
    """Return the class of the sampler, also below a batch sampler."""
    if _iterates(loader):
        return None
    batches = loader.batch_sampler
    sampler = loader.sampler if batches is None else getattr(batches, "sampler", batches)
    return type(sampler).__name__


def _seed(loader: Any) -> int:
    """Return the seed of the order: the user's, or the run's."""
    generator = _generator(loader)
    return run_seed() if generator is None else int(generator.initial_seed())


def _generator(loader: Any) -> Any:
    """Return the generator passed to the DataLoader or its sampler."""
    if loader.generator is not None:
        return loader.generator
    below = loader._index_sampler
    while (deeper := getattr(below, "sampler", None)) is not None:
        below = deeper
    return getattr(below, "generator", None)


def _batch_size(loader: Any) -> int | None:
    """Return the batch size; None if batching is done elsewhere, or sizes differ."""
    size = getattr(loader.batch_sampler, "batch_size", None) or loader.batch_size
    return int(size) if size is not None else None


def _drops(loader: Any) -> bool:
    return bool(getattr(loader.batch_sampler, "drop_last", loader.drop_last))


def passes(loader: Any) -> Callable[[int], Iterator[Any]] | None:
    """Return a function that begins a pass in the run's order; None if the loader has its own.

    Each task of a job has its own loader. Without a seed, each would draw another order, and
    samples would be repeated or missing among the batches of different streamers. The user's loader
    is not changed.
    """
    if _iterates(loader) or _sampler(loader) == IN_ORDER or _generator(loader) is not None:
        return None
    name = "sampler" if loader.batch_sampler is None else "batch_sampler"
    order = RunOrder(getattr(loader, name))
    ours = copy.copy(loader)
    # A DataLoader does not accept a new sampler.
    ours.__dict__.update({name: order, "_iterator": None})

    def begin(number: int) -> Iterator[Any]:
        order.begin(number)
        return iter(ours)

    return begin


def indexed(loader: Any) -> RandomAccess | None:
    """Return its batches by index; None if it has an iterator, a sampler, a generator or worker
    processes of its own.
    """
    if _iterates(loader) or loader.num_workers or _generator(loader) is not None:
        return None
    theirs = (loader.sampler, loader.batch_sampler, getattr(loader.batch_sampler, "sampler", None))
    known = all(each is None or type(each).__module__ in _TORCHS for each in theirs)
    if not known or type(loader).__iter__.__qualname__ != "DataLoader.__iter__":
        return None
    kept: dict[int, PassOrder] = {}

    def order_of(number: int) -> PassOrder:
        if number not in kept:
            # One pass at a time: an order has a number for each sample.
            kept.clear()
            kept[number] = _order_of_run(loader, number)
        return kept[number]

    return RandomAccess(LoaderBatches(loader, order_of), len(loader))


def _order_of_run(loader: Any, number: int) -> PassOrder:
    """Draw the order of a pass from the run's seed and the pass number."""
    seed = _seed_of_pass(number, 0)
    with GlobalNumbers(seed).in_place():
        return PassOrder(seed, list(loader._index_sampler))


def _seed_of_pass(number: int, begun: int) -> int:
    key = np.random.SeedSequence([run_seed(), number, begun])
    return int(key.generate_state(1, np.uint64)[0])


class RunOrder:
    """Sampler or batch sampler that draws the same order in all tasks of a run.

    The wrapped sampler may use the global generators of torch, NumPy or Python: while it draws,
    they are seeded from the run's seed and the pass.
    """

    def __init__(self, below: Any) -> None:
        self._below = below
        self.begin(0)

    def __len__(self) -> int:
        return len(self._below)

    def begin(self, number: int) -> None:
        """Begin a pass."""
        self._pass, self._begun = number, count()

    def __iter__(self) -> Iterator[Any]:
        return self._drawn(self._pass, self._begun)

    def _drawn(self, number: int, begun: Iterator[int]) -> Iterator[Any]:
        """Draw the order. Draws are counted here, as torch with workers iterates twice, reads once.

        An endless loader restarts within one of our passes, with another order.
        """
        numbers, end = GlobalNumbers(_seed_of_pass(number, next(begun))), object()
        with numbers.in_place():
            below = iter(self._below)
        while True:
            with numbers.in_place():
                item = next(below, end)
            if item is end:
                return
            yield item


class GlobalNumbers:
    """State of the global generators, swapped in for a block and saved after it.

    Outside of the block, the user's code sees its own state unchanged.
    """

    def __init__(self, seed: int) -> None:
        import torch

        self._torch = torch.default_generator
        self._states = (
            random.Random(seed).getstate(),
            np.random.RandomState(seed % 2**32).get_state(),
            torch.Generator().manual_seed(seed).get_state(),
        )

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Swap this state in for the block."""
        outside = self._exchange(self._states)
        try:
            yield
        finally:
            self._states = self._exchange(outside)

    def _exchange(self, states: Any) -> Any:
        before = random.getstate(), np.random.get_state(), self._torch.get_state()
        random.setstate(states[0])
        np.random.set_state(states[1])
        self._torch.set_state(states[2])
        return before
