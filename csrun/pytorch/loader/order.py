"""Sample order of a DataLoader, drawn by the chief as torch does, and sent to streamers.

The chief begins each pass as PyTorch does: it draws the base seed, then what the sampler draws,
from the user's own generators. Streamers receive the result. With `shuffle=True` a pass is two
seeds, and those of coming passes are sent ahead, predicted from how many numbers others drew
between the last two: none, or the seed of a pass over a validation loader. A wrong prediction is
corrected before the pass. For any other sampler the indices of each pass are sent.

Source: torch.utils.data.dataloader, _BaseDataLoaderIter; torch.utils.data.sampler, RandomSampler
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, SequentialSampler

from csrun.data.adapters.torch_batches import Indices, PassOrder
from csrun.data.errors import UnusableLoaderError
from csrun.pytorch.loader.iterated import (
    generator_states,
    is_iterated,
    rows_of,
    seeded_states,
    worker_states,
)
from csrun.pytorch.loader.random_order import RandomOrder

AHEAD = 256  # passes whose seeds are sent at once
MOST_BETWEEN = 8  # tried numbers of other draws between two passes: four loaders' seeds


class PassSeeds(msgspec.Struct, frozen=True, array_like=True):
    """Seeds that torch draws at the beginning of a pass: the workers' base seed, and the
    sampler's.
    """

    base: int
    sampler: int


class SentOrder(msgspec.Struct, frozen=True, array_like=True):
    """Seeds of passes `first`, `first + 1`, …; batches: indices of a single pass without seeds."""

    first: int
    seeds: tuple[PassSeeds, ...]
    batches: list[Any] | None = None


class PassOrders:
    """Orders of the passes over one loader, drawn in the chief, received by other tasks.

    begun: number of passes begun.
    is_in_progress: whether the last one was not read to its end.
    """

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._loader = loader
        self._seeded = None if is_iterated(loader) else seeded_order_of(loader)
        self._samples = 0  # of a pass
        self._known = SentOrder(0, ())
        self._base: int | None = None  # of workers that persist
        self._state_after: torch.Tensor | None = None  # of torch's generator, after the last pass
        self._between = 0  # draws of others between two passes
        self._cache: dict[int, PassOrder] = {}  # cache of the passes being read
        self.begun = 0
        self.is_in_progress = False

    @property
    def draws_lazily(self) -> bool:
        """True if the next pass's order depends on how much of the last one was read.

        True for a RandomSampler with its own generator; csrun draws a pass at once.
        """
        sampler = _samples_of(self._loader)
        return type(sampler) is RandomSampler and sampler.generator is not None

    def begin(self, before: Callable[[], None] = lambda: None) -> bool:
        """Begin the next pass as torch's iterator does; return whether its prediction was right.

        before: called if it was wrong, while the orders sent before are still in use.
        """
        is_predicted = self._begin_pass(self.begun, before)
        self.begun += 1
        self.is_in_progress = True
        return is_predicted

    def _begin_pass(self, number: int, before: Callable[[], None]) -> bool:
        if self._seeded is None:
            sent = self._iterated(number) if is_iterated(self._loader) else self._drawn(number)
        else:
            self._samples = len(self._seeded.sampler)
            seeds = self._draw_seeds()
            is_predicted = self._seeds_of(number) == seeds
            if not is_predicted:
                self._between = self._count_draws_between(seeds)
            self._state_after = torch.default_generator.get_state()
            if is_predicted:
                return True
            sent = SentOrder(number, (seeds, *self._predict_seeds()))
        before()
        self._set_known(sent)
        return False

    def _iterated(self, number: int) -> SentOrder:
        """Return the states that a pass over an iterable begins with."""
        before = generator_states()
        base = self._draw_base()
        seed = base + number if self._keeps_base else base
        if self._loader.num_workers:
            states = worker_states(seed)
        else:  # a later pass begins with a seed, since the chief need not iterate the earlier ones
            states = seeded_states(seed) if number else before
        return SentOrder(number, (PassSeeds(base, 0),), states)

    def _drawn(self, number: int) -> SentOrder:
        """Return the indices that a sampler yields in a pass."""
        return SentOrder(number, (PassSeeds(self._draw_base(), 0),), self._draw_batches())

    def end(self) -> int:
        """Return the first pass whose order is not known."""
        return self._known.first + len(self._known.seeds)

    def encode(self) -> bytes:
        """Encode the known orders for `decode` in another process.

        Raises: UnusableLoaderError for a sampler that yields other than numbers and text
        """
        return msgspec.msgpack.encode(self._known, enc_hook=_plain)

    def decode(self, sent: bytes) -> None:
        """Decode the chief's orders."""
        self._set_known(msgspec.msgpack.decode(sent, type=SentOrder))

    def of(self, number: int) -> PassOrder:
        """Return the order of a known pass.

        Raises: LookupError for another
        """
        if number not in self._cache:
            self._cache = {n: order for n, order in self._cache.items() if n == number - 1}
            self._cache[number] = self._make_order(number)
        return self._cache[number]

    def rows(self, number: int, position: int) -> int | None:
        """Return the number of samples in a batch; None where samples are batches themselves."""
        loader = self._loader
        if loader.batch_sampler is None:
            return None
        if is_iterated(loader):
            return rows_of(loader, position)
        if self._seeded is not None:  # known without the pass's order
            return min(self._seeded.size or 1, self._samples - position * (self._seeded.size or 1))
        return len(self.of(number).batches[position])

    def _set_known(self, sent: SentOrder) -> None:
        self._known = sent
        self._cache = {}

    def _make_order(self, number: int) -> PassOrder:
        seeds = self._seeds_of(number)
        if seeds is None:
            raise LookupError(f"pass {number} of the DataLoader has not begun")
        if self._known.batches is not None:
            return PassOrder(seeds.base, self._known.batches)
        assert self._seeded is not None, "other orders are sent as batches"
        return PassOrder(seeds.base, self._seeded.batches(seeds.sampler, len(self._loader)))

    def _seeds_of(self, number: int) -> PassSeeds | None:
        place = number - self._known.first
        return self._known.seeds[place] if 0 <= place < len(self._known.seeds) else None

    def _draw_seeds(self) -> PassSeeds:
        return PassSeeds(self._draw_base(), self._draw_sampler_seed())

    def _draw_base(self) -> int:
        if self._base is None or not self._keeps_base:
            self._base = draw_seed(self._loader.generator)
        return self._base

    def _draw_sampler_seed(self) -> int:
        return draw_seed(None) if self._shuffles else 0

    @property
    def _keeps_base(self) -> bool:
        return bool(self._loader.num_workers) and self._loader.persistent_workers

    @property
    def _shuffles(self) -> bool:
        assert self._seeded is not None, "its order is one of seeds"
        return type(self._seeded.sampler) is RandomSampler

    def _draw_batches(self) -> list[Indices]:
        sampler = self._loader._index_sampler
        for _ in range(1 + (self._loader.num_workers > 0)):  # torch begins twice with workers
            batches = iter(sampler)
        return list(islice(batches, len(self._loader) + 1))

    def _predict_seeds(self) -> list[PassSeeds]:
        """Return the seeds of the next passes, if others draw as many between them.

        One draw of many numbers gives the same as many draws of one, at a fiftieth of the cost.
        """
        count, generator = AHEAD - 1, self._loader.generator
        shuffles, bases = self._shuffles, None
        with self._keep_generators():
            if self._keeps_base:
                bases = [self._draw_base()] * count
            elif generator not in (None, torch.default_generator):
                bases = draw_seeds(count, generator)
            draws = self._between + (bases is None) + shuffles  # of a pass, from torch's generator
            drawn = draw_seeds(count * draws, None)
        passes = [drawn[number * draws : (number + 1) * draws] for number in range(count)]
        if bases is None:
            bases = [seeds[self._between] for seeds in passes]
        return [
            PassSeeds(base, seeds[-1] if shuffles else 0)
            for base, seeds in zip(bases, passes, strict=True)
        ]

    def _count_draws_between(self, seeds: PassSeeds) -> int:
        """Return how many numbers others drew since the last pass began, 0 if not found."""
        if self._state_after is None or self._loader.generator is not None:
            return 0
        with self._keep_generators():
            torch.default_generator.set_state(self._state_after)
            for count in range(MOST_BETWEEN + 1):
                here = torch.default_generator.get_state()
                if self._draw_seeds() == seeds:
                    return count
                torch.default_generator.set_state(here)
                draw_seed(None)
        return 0

    @contextmanager
    def _keep_generators(self) -> Iterator[None]:
        """Restore the generators after the context."""
        generators = [torch.default_generator, *filter(None, [self._loader.generator])]
        states, base = [each.get_state() for each in generators], self._base
        try:
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            self._base = base


def draw_seed(generator: "torch.Generator | None") -> int:
    """Draw a seed as torch does for a pass."""
    return draw_seeds(1, generator)[0]


def draw_seeds(count: int, generator: "torch.Generator | None") -> list[int]:
    """Draw seeds as torch does one after the other."""
    drawn: list[int] = torch.empty(count, dtype=torch.int64).random_(generator=generator).tolist()
    return drawn


@dataclass(frozen=True)
class SeededOrder:
    """Sequential order, or one shuffled by a seed of torch's generator, in batches.

    size: samples of a batch; None for single samples.
    """

    sampler: "SequentialSampler | RandomSampler"
    size: int | None

    def batches(self, seed: int, length: int) -> Sequence[Indices]:
        """Return the batches of a pass by its seed."""
        sampler = self.sampler
        if isinstance(sampler, SequentialSampler):
            return BatchedOrder(range(len(sampler)), self.size, length)
        return BatchedOrder(RandomOrder(sampler, seed), self.size, length)


def seeded_order_of(loader: "DataLoader[Any]") -> SeededOrder | None:
    """Return the order of a loader whose passes are one seed each; None for other samplers.

    True for `shuffle`, torch's SequentialSampler and RandomSampler, and a BatchSampler of one of
    them, given as `batch_sampler` or as `sampler` with `batch_size=None`.
    """
    batches = _batches_of(loader)
    size = batches.batch_size if type(batches) is BatchSampler else None
    sampler = _samples_of(loader)
    if type(sampler) is SequentialSampler:
        return SeededOrder(sampler, size)
    if type(sampler) is RandomSampler and sampler.generator is None:
        return SeededOrder(sampler, size)
    return None


class BatchedOrder(Sequence[Indices]):
    """Batches of an order, cut on demand; single elements if size is None."""

    def __init__(self, order: "range | RandomOrder", size: int | None, length: int) -> None:
        self._order, self._size, self._length = order, size, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, position: Any) -> Any:
        if not 0 <= position < self._length:
            raise IndexError(position)
        if self._size is None:
            return int(self._order[position])
        return list(self._order[position * self._size : (position + 1) * self._size])


def _plain(index: Any) -> Any:
    """Return an index of NumPy's or torch's type as Python numbers, for msgpack."""
    if isinstance(index, np.integer | torch.Tensor):
        return index.item() if isinstance(index, np.integer) or not index.dim() else index.tolist()
    raise UnusableLoaderError(
        f"DataLoader: its sampler must yield numbers, got {type(index).__name__}: look these up in "
        "the dataset's __getitem__"
    )


def _batches_of(loader: "DataLoader[Any]") -> Any:
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def _samples_of(loader: "DataLoader[Any]") -> Any:
    """Return the sampler of single samples, below a BatchSampler."""
    batches = _batches_of(loader)
    return batches.sampler if type(batches) is BatchSampler else batches
