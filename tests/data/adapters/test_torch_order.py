"""A torch DataLoader that shuffles without a seed: one order for all tasks of a run."""

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

from csrun.data import Dataset, as_dataset
from csrun.data.sharding import seeded

torch = pytest.importorskip("torch")
data = torch.utils.data

COUNT, BATCH = 60, 5
PASS = COUNT // BATCH
SAMPLES = data.TensorDataset(torch.arange(float(COUNT)), torch.arange(COUNT))


class Mixed(data.Sampler[int]):
    """A user-defined sampler."""

    def __init__(self, order: Callable[[], list[int]]) -> None:
        self.order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self.order())

    def __len__(self) -> int:
        return COUNT


class Endless(Mixed):
    """Sampler that never ends."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from self.order()


class EndlessLoader(data.DataLoader[Any]):
    """Loader that starts again at the end of each pass."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            yield from super().__iter__()


def flat(batches: list[list[int]]) -> list[int]:
    return [sample for batch in batches for sample in batch]


def by_python() -> list[int]:
    return random.sample(range(COUNT), COUNT)


def by_numpy() -> list[int]:
    return np.random.permutation(COUNT).tolist()


def by_torch() -> list[int]:
    return torch.randperm(COUNT).tolist()


def loader(kind: type = data.DataLoader, **options: Any) -> Any:
    return kind(SAMPLES, **({"batch_size": BATCH} | options))


LOADERS: dict[str, Callable[[], Any]] = {
    "shuffle": lambda: loader(shuffle=True),
    "RandomSampler": lambda: loader(sampler=data.RandomSampler(SAMPLES)),
    "SubsetRandomSampler": lambda: loader(sampler=data.SubsetRandomSampler(range(COUNT))),
    "BatchSampler": lambda: data.DataLoader(
        SAMPLES, batch_sampler=data.BatchSampler(data.RandomSampler(SAMPLES), BATCH, False)
    ),
    "samples that are batches": lambda: data.DataLoader(
        data.TensorDataset(torch.arange(COUNT).reshape(PASS, BATCH)), None, shuffle=True
    ),
    "random": lambda: loader(sampler=Mixed(by_python)),
    "numpy.random": lambda: loader(sampler=Mixed(by_numpy)),
    "torch.randperm": lambda: loader(sampler=Mixed(by_torch)),
}
ENDLESS: dict[str, Callable[[], Any]] = {
    "sampler": lambda: loader(sampler=Endless(by_torch)),
    "loader": lambda: loader(EndlessLoader, shuffle=True),
}


def task(
    make: Callable[[], Any], index: int = 0, count: int = 1, seed: int = 1, first: int = 0
) -> Iterator[list[int]]:
    """Batches of streamer `index` of `count`, from batch `first` on, in its own task."""
    random.seed()
    np.random.seed()
    torch.seed()
    with seeded(seed):
        made = make()
        made = made if isinstance(made, Dataset) else as_dataset(made)
        made.element_spec()  # as every task looks at it first
        start = first + (index - first) % count
        for batch in made.batches(start, count):
            yield batch[-1].tolist()


def taken(make: Callable[[], Any], streamers: int, batches: int, **options: Any) -> list[list[int]]:
    """Batches that a wafer takes from this many streamers in turn."""
    tasks = [task(make, index, streamers, **options) for index in range(streamers)]
    first = options.get("first", 0)
    return [next(tasks[number % streamers]) for number in range(first, first + batches)]


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("streamers", [2, 4])
def test_streamers_give_each_sample_once_a_pass(name: str, streamers: int) -> None:
    batches = taken(LOADERS[name], streamers, PASS)
    assert sorted(flat(batches)) == list(range(COUNT))
    assert batches == taken(LOADERS[name], 1, PASS)
    assert flat(batches) != list(range(COUNT))


@pytest.mark.parametrize("name", LOADERS)
def test_the_next_pass_has_another_order_and_a_resumed_run_the_same(name: str) -> None:
    def make() -> Dataset:
        return as_dataset(LOADERS[name]()).repeat()

    whole = taken(make, 2, 3 * PASS)
    passes = [flat(whole[k * PASS : (k + 1) * PASS]) for k in range(3)]
    assert all(sorted(samples) == list(range(COUNT)) for samples in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]
    assert taken(make, 3, 2 * PASS, first=PASS) == whole[PASS:]


@pytest.mark.parametrize("name", ENDLESS)
def test_passes_within_an_iterable_without_end_are_passes_too(name: str) -> None:
    whole = taken(ENDLESS[name], 2, 2 * PASS)
    first, second = flat(whole[:PASS]), flat(whole[PASS:])
    assert sorted(first) == sorted(second) == list(range(COUNT))
    assert first != second
    assert taken(ENDLESS[name], 1, 2 * PASS) == whole


def test_worker_processes_draw_the_order_of_a_loader_without_them() -> None:
    def make() -> Dataset:
        return as_dataset(loader(shuffle=True, num_workers=1, persistent_workers=True)).repeat(2)

    alone = list(task(lambda: as_dataset(LOADERS["shuffle"]()).repeat(2)))
    assert list(task(make)) == alone


def test_the_seed_is_the_runs() -> None:
    make = LOADERS["shuffle"]
    assert list(task(make, seed=2)) == list(task(make, seed=2)) != list(task(make, seed=3))


def test_an_authors_own_seed_stays() -> None:
    def make(**options: Any) -> Any:
        return loader(generator=torch.Generator().manual_seed(7), **options)

    torchs = [labels.tolist() for _, labels in make(shuffle=True)]
    assert list(task(lambda: make(shuffle=True), seed=2)) == torchs
    sampler = data.RandomSampler(SAMPLES, generator=torch.Generator().manual_seed(7))
    again = list(task(lambda: loader(sampler=sampler), seed=3))
    assert sorted(flat(again)) == list(range(COUNT))
    (told,) = (op for op in as_dataset(loader(sampler=sampler)).operators if op.name == "shuffle")
    assert told.options["seed"] == 7


def test_the_users_loader_and_random_numbers_stay_as_they_are() -> None:
    mine = loader(sampler=Mixed(by_numpy))
    sampler = mine.sampler
    for state in (random.seed, np.random.seed, torch.manual_seed):
        state(5)
    expected = random.random(), np.random.random(), torch.rand(()).item()
    for state in (random.seed, np.random.seed, torch.manual_seed):
        state(5)
    assert len(list(islice(as_dataset(mine), 4))) == 4
    assert (random.random(), np.random.random()) == expected[:2]
    assert mine.sampler is sampler


def test_a_loader_in_order_is_not_touched() -> None:
    assert list(task(lambda: loader())) == np.arange(COUNT).reshape(PASS, BATCH).tolist()
