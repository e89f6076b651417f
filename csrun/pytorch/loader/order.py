"""The order of a DataLoader's samples, drawn as torch's own iterator draws it, and told to others.

The chief begins each pass as PyTorch does: it draws the base seed, then what the sampler draws,
from the user's own generators. Streamers begin none: they are told. Where the order is that of
`shuffle=True` a pass is two numbers, and those of the passes to come are told beforehand, as they
are when between two of them others draw as many numbers as the last time: none, or the seed of a
pass over the validation's loader. Where that is not so they are told anew. Of any other sampler
each pass is told whole.

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
from csrun.pytorch.loader.random_order import RandomOrder

AHEAD = 256  # passes that are told beforehand
MOST_BETWEEN = 8  # draws of others between two passes that are looked for: four loaders' seeds


class PassSeeds(msgspec.Struct, frozen=True, array_like=True):
    """What torch draws as a pass begins: the base seed of workers, and the sampler's."""

    base: int
    sampler: int


class Told(msgspec.Struct, frozen=True, array_like=True):
    """The orders of passes `first`, `first + 1`, …; `batches`: all of the one pass that it is."""

    first: int
    seeds: tuple[PassSeeds, ...]
    batches: list[Any] | None = None


class Orders:
    """The passes over one loader: begun here, in the chief, or told by it.

    begun: how many have begun. is_under_way: whether the last one has not been read to its end.
    """

    def __init__(self, loader: "DataLoader[Any]") -> None:
        self._loader = loader
        self._cut = cut_of(loader)
        self._samples = 0  # of a pass
        self._told = Told(0, ())
        self._base: int | None = None  # of workers that persist
        self._behind: torch.Tensor | None = None  # torch's generator, behind the last pass's draws
        self._between = 0  # draws of others between two passes
        self._kept: dict[int, PassOrder] = {}  # those that are read now
        self.begun = 0
        self.is_under_way = False

    @property
    def draws_as_it_goes(self) -> bool:
        """Whether the next pass depends on how much of the last one was read.

        So it is with a RandomSampler that has a generator of its own; csrun draws a pass at once.
        """
        sampler = _samples_of(self._loader)
        return type(sampler) is RandomSampler and sampler.generator is not None

    def begin(self, before: Callable[[], None] = lambda: None) -> bool:
        """Begin the next pass, as torch's iterator does; whether it had been told already.

        before: is called where it had not, while what was told still holds
        """
        told = self._begin(self.begun, before)
        self.begun += 1
        self.is_under_way = True
        return told

    def _begin(self, number: int, before: Callable[[], None]) -> bool:
        if self._cut is None:
            told = Told(number, (PassSeeds(self._drawn_base(), 0),), self._drawn_batches())
        else:
            self._samples = len(self._cut.sampler)
            seeds = self._drawn()
            is_told = self._seeds_of(number) == seeds
            if not is_told:
                self._between = self._found_between(seeds)
            self._behind = torch.default_generator.get_state()
            if is_told:
                return True
            told = Told(number, (seeds, *self._foreseen()))
        before()
        self._tell(told)
        return False

    def end(self) -> int:
        """The first pass that nobody has told."""
        return self._told.first + len(self._told.seeds)

    def told(self) -> bytes:
        """What `adopt` takes in another process.

        Raises: UnusableLoaderError for a sampler that gives other things than numbers and text
        """
        return msgspec.msgpack.encode(self._told, enc_hook=_plain)

    def adopt(self, told: bytes) -> None:
        """Take what the chief has told."""
        self._tell(msgspec.msgpack.decode(told, type=Told))

    def of(self, number: int) -> PassOrder:
        """The order of a pass that was told.

        Raises: LookupError for another
        """
        if number not in self._kept:
            self._kept = {n: order for n, order in self._kept.items() if n == number - 1}
            self._kept[number] = self._made(number)
        return self._kept[number]

    def rows(self, number: int, position: int) -> int | None:
        """How many samples a batch has; None where the samples are batches themselves."""
        loader = self._loader
        if loader.batch_sampler is None:
            return None
        if self._cut is not None:  # whose order the chief need not know for that
            return min(self._cut.size or 1, self._samples - position * (self._cut.size or 1))
        return len(self.of(number).batches[position])

    def _tell(self, told: Told) -> None:
        self._told = told
        self._kept = {}

    def _made(self, number: int) -> PassOrder:
        seeds = self._seeds_of(number)
        if seeds is None:
            raise LookupError(f"pass {number} of the DataLoader has not begun")
        if self._told.batches is not None:
            return PassOrder(seeds.base, self._told.batches)
        assert self._cut is not None, "else its batches are told"
        return PassOrder(seeds.base, self._cut.batches(seeds.sampler, len(self._loader)))

    def _seeds_of(self, number: int) -> PassSeeds | None:
        place = number - self._told.first
        return self._told.seeds[place] if 0 <= place < len(self._told.seeds) else None

    def _drawn(self) -> PassSeeds:
        return PassSeeds(self._drawn_base(), self._drawn_sampler_seed())

    def _drawn_base(self) -> int:
        if self._base is None or not self._keeps_base:
            self._base = drawn_seed(self._loader.generator)
        return self._base

    def _drawn_sampler_seed(self) -> int:
        return drawn_seed(None) if self._shuffles else 0

    @property
    def _keeps_base(self) -> bool:
        return bool(self._loader.num_workers) and self._loader.persistent_workers

    @property
    def _shuffles(self) -> bool:
        assert self._cut is not None, "its order is one of seeds"
        return type(self._cut.sampler) is RandomSampler

    def _drawn_batches(self) -> list[Indices]:
        sampler = self._loader._index_sampler
        for _ in range(1 + (self._loader.num_workers > 0)):  # torch begins twice for workers
            batches = iter(sampler)
        return list(islice(batches, len(self._loader) + 1))

    def _foreseen(self) -> list[PassSeeds]:
        """The seeds of the next passes, if others draw as many between them.

        Numbers drawn at once are those drawn one by one, and cost a fiftieth.
        """
        count, generator = AHEAD - 1, self._loader.generator
        shuffles, bases = self._shuffles, None
        with self._unmoved():
            if self._keeps_base:
                bases = [self._drawn_base()] * count
            elif generator not in (None, torch.default_generator):
                bases = drawn_seeds(count, generator)
            draws = self._between + (bases is None) + shuffles  # of a pass, from torch's generator
            drawn = drawn_seeds(count * draws, None)
        passes = [drawn[number * draws : (number + 1) * draws] for number in range(count)]
        if bases is None:
            bases = [seeds[self._between] for seeds in passes]
        return [
            PassSeeds(base, seeds[-1] if shuffles else 0)
            for base, seeds in zip(bases, passes, strict=True)
        ]

    def _found_between(self, seeds: PassSeeds) -> int:
        """How many numbers others have drawn since the last pass began; 0 if that is not seen."""
        if self._behind is None or self._loader.generator is not None:
            return 0
        with self._unmoved():
            torch.default_generator.set_state(self._behind)
            for count in range(MOST_BETWEEN + 1):
                here = torch.default_generator.get_state()
                if self._drawn() == seeds:
                    return count
                torch.default_generator.set_state(here)
                drawn_seed(None)
        return 0

    @contextmanager
    def _unmoved(self) -> Iterator[None]:
        """What is drawn in the context is not."""
        generators = [torch.default_generator, *filter(None, [self._loader.generator])]
        states, base = [each.get_state() for each in generators], self._base
        try:
            yield
        finally:
            for generator, state in zip(generators, states, strict=True):
                generator.set_state(state)
            self._base = base


def drawn_seed(generator: "torch.Generator | None") -> int:
    """A seed, drawn as torch draws those of a pass."""
    return drawn_seeds(1, generator)[0]


def drawn_seeds(count: int, generator: "torch.Generator | None") -> list[int]:
    """As many seeds, as torch draws them one after the other."""
    drawn: list[int] = torch.empty(count, dtype=torch.int64).random_(generator=generator).tolist()
    return drawn


@dataclass(frozen=True)
class SeededCut:
    """The data set's order, or one shuffled by a seed of torch's generator, cut into batches.

    size: samples of a batch; None where they are not put together.
    """

    sampler: "SequentialSampler | RandomSampler"
    size: int | None

    def batches(self, seed: int, length: int) -> Sequence[Indices]:
        """So many batches of a pass that was drawn by a seed."""
        sampler = self.sampler
        if isinstance(sampler, SequentialSampler):
            return Cut(range(len(sampler)), self.size, length)
        return Cut(RandomOrder(sampler, seed), self.size, length)


def cut_of(loader: "DataLoader[Any]") -> SeededCut | None:
    """How a loader's passes are drawn, where each is one seed; None for other samplers.

    So it is with `shuffle`, with these samplers, and with a BatchSampler of them that is given as
    `batch_sampler`, or as `sampler` with `batch_size=None`.
    """
    batches = _batches_of(loader)
    size = batches.batch_size if type(batches) is BatchSampler else None
    sampler = _samples_of(loader)
    if type(sampler) is SequentialSampler:
        return SeededCut(sampler, size)
    if type(sampler) is RandomSampler and sampler.generator is None:
        return SeededCut(sampler, size)
    return None


class Cut(Sequence[Indices]):
    """An order, cut into batches of a size where they are asked for; without one, its elements."""

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
    """What travels in the place of an index that is a number of NumPy's or torch's."""
    if isinstance(index, np.integer | torch.Tensor):
        return index.item() if isinstance(index, np.integer) or not index.dim() else index.tolist()
    raise UnusableLoaderError(
        f"DataLoader: its sampler must yield numbers, got {type(index).__name__}: look these up in "
        "the dataset's __getitem__"
    )


def _batches_of(loader: "DataLoader[Any]") -> Any:
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def _samples_of(loader: "DataLoader[Any]") -> Any:
    """The sampler of single samples, below a BatchSampler."""
    batches = _batches_of(loader)
    return batches.sampler if type(batches) is BatchSampler else batches
