"""Order of a DataLoader's samples: PyTorch's with any number of streamers, each batch made once."""

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from csrun.base.errors import UsageError  # noqa: E402
from csrun.pytorch.loader import PassOrders, check, dataset_of  # noqa: E402
from csrun.pytorch.loader.random_order import BLOCK, RandomOrder  # noqa: E402

data = torch.utils.data
COUNT, BATCH, PASSES = 60, 8, 3
NUMBERS = torch.arange(COUNT)
PLAIN = data.TensorDataset(NUMBERS)


class Mixed(data.Sampler[int]):
    """User-defined sampler that draws from all three generators as it iterates."""

    def __iter__(self) -> Iterator[int]:
        for _ in range(COUNT):
            drawn = int(torch.randint(COUNT, ())) + np.random.randint(COUNT)
            yield (drawn + random.randrange(COUNT)) % COUNT

    def __len__(self) -> int:
        return COUNT


class Buckets(data.Sampler[list[int]]):
    """Batches of several sizes, in another order each pass."""

    def __iter__(self) -> Iterator[list[int]]:
        sizes = [1, 2, 3, 4]
        random.shuffle(sizes)
        return iter([list(range(size)) for size in sizes])

    def __len__(self) -> int:
        return 4


def loader(**options: Any) -> Any:
    return data.DataLoader(PLAIN, **({"batch_size": BATCH} | options))


def rows_at_once(samples: Any) -> Any:
    """Loader whose dataset returns all samples of a batch in one call."""
    return data.DataLoader(PLAIN, batch_size=None, sampler=data.BatchSampler(samples, BATCH, False))


def own() -> Any:
    return torch.Generator().manual_seed(7)


LOADERS: dict[str, Callable[[], Any]] = {
    "in order": loader,
    "shuffle": lambda: loader(shuffle=True),
    "drop_last": lambda: loader(shuffle=True, drop_last=True),
    "generator": lambda: loader(shuffle=True, generator=own()),
    "in order, generator": lambda: loader(generator=own()),
    "replacement": lambda: loader(sampler=data.RandomSampler(PLAIN, True, 50)),
    "more than all": lambda: loader(sampler=data.RandomSampler(PLAIN, num_samples=100)),
    "weighted": lambda: loader(sampler=data.WeightedRandomSampler(1.0 + NUMBERS, COUNT)),
    "subset": lambda: loader(sampler=data.SubsetRandomSampler(range(30))),
    "mixed": lambda: loader(sampler=Mixed()),
    "batch_sampler": lambda: data.DataLoader(
        PLAIN, batch_sampler=data.BatchSampler(data.RandomSampler(PLAIN), BATCH, False)
    ),
    "batch_sampler, as torch has it": lambda: data.DataLoader(
        PLAIN, batch_sampler=loader(shuffle=True).batch_sampler
    ),
    "a sampler of batches": lambda: rows_at_once(data.RandomSampler(PLAIN)),
    "a sampler of batches in order": lambda: rows_at_once(data.SequentialSampler(PLAIN)),
    "a sampler of batches, generator": lambda: rows_at_once(
        data.RandomSampler(PLAIN, generator=own())
    ),
    "buckets": lambda: data.DataLoader(PLAIN, batch_sampler=Buckets()),
    "samples that are batches": lambda: data.DataLoader(
        data.TensorDataset(NUMBERS.reshape(-1, 5)), None, shuffle=True
    ),
}


def seed() -> None:
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)


def batches_of_torch(make: Callable[[], Any], between: Callable[[], Any]) -> list[list[int]]:
    """Batches of three passes in plain PyTorch; the user's loop draws numbers between them."""
    seed()
    loader, found = make(), []
    for _ in range(PASSES):
        found += [rows.tolist() for (rows,) in loader]
        between()
    return found


def batches_of_csrun(
    make: Callable[[], Any], between: Callable[[], Any], streamers: int
) -> list[list[int]]:
    """The same by streamers in turn, each with its own loader and orders from the chief."""
    seed()
    chief = make()
    orders, length = PassOrders(chief), len(chief)
    told = [PassOrders(make()) for _ in range(streamers)]
    tasks = [dataset_of(each._loader, each) for each in told]
    found: list[list[int]] = []
    for number in range(PASSES):
        if not orders.begin():
            for each in told:
                each.decode(orders.encode())
        first = number * length
        made = [
            islice(task.batches(first + (index - first) % streamers, streamers), length)
            for index, task in enumerate(tasks)
        ]
        for n in range(first, first + length):
            (rows,) = next(made[n % streamers])
            assert orders.rows(number, n - first) in (len(rows), None)
            found.append(rows.tolist())
        between()
    return found


@pytest.mark.parametrize("name", LOADERS)
@pytest.mark.parametrize("streamers", [1, 2, 6])
def test_the_order_is_plain_pytorchs(name: str, streamers: int) -> None:
    make = LOADERS[name]
    expected = batches_of_torch(make, lambda: None)
    assert batches_of_csrun(make, lambda: None, streamers) == expected


@pytest.mark.parametrize("samples", [7, BLOCK - 1, BLOCK + 9])
@pytest.mark.parametrize("replacement", [True, False])
def test_a_pass_is_drawn_in_blocks(samples: int, replacement: bool) -> None:
    length = 2 * BLOCK + 5
    sampler = data.RandomSampler(range(samples), replacement, length)
    sampler.generator = torch.Generator().manual_seed(9)
    expected, order = list(sampler), RandomOrder(sampler, 9)
    batches = [order[start : start + 999] for start in range(0, length, 999)]
    assert [index for batch in batches for index in batch] == expected
    assert [order[0], order[length - 1]] == [expected[0], expected[-1]]


def test_a_pass_without_end_in_sight_begins_at_once() -> None:
    orders = PassOrders(made := loader(sampler=data.RandomSampler(PLAIN, True, 10**10)))
    orders.begin()
    assert len(next(iter(dataset_of(made, orders)))[0]) == BATCH


@pytest.mark.parametrize("name", ["shuffle", "mixed", "weighted"])
@pytest.mark.parametrize("between", [lambda: torch.rand(1), lambda: iter(loader())])
def test_what_the_users_loop_draws_moves_it_as_in_pytorch(name: str, between: Any) -> None:
    make = LOADERS[name]
    expected = batches_of_torch(make, between)
    assert expected != batches_of_torch(make, lambda: None)
    assert batches_of_csrun(make, between, 2) == expected


@pytest.mark.parametrize("name", ["shuffle", "batch_sampler", "a sampler of batches"])
def test_passes_to_come_are_told_beforehand_where_nothing_else_draws(name: str) -> None:
    seed()
    orders = PassOrders(LOADERS[name]())
    assert [orders.begin() for _ in range(4)] == [False, True, True, True]
    torch.rand(1)
    assert [orders.begin() for _ in range(2)] == [False, True]
    assert orders.end() > 100
    assert len(orders.encode()) < 10_000


@pytest.mark.parametrize("draws", [1, 3])
def test_orders_are_sent_in_advance_if_others_draw_regularly(draws: int) -> None:
    """As a loop with a validation after each pass does; then it draws once more, then never."""

    def drawn(count: int) -> None:
        for _ in range(count):
            iter(loader())  # which draws the seed of its workers

    seed()
    orders, found = PassOrders(loader(shuffle=True)), []
    for count in (draws, draws, draws, draws + 1, draws, draws, 0, 0, 0):
        found.append(orders.begin())
        drawn(count)
    assert found == [False, False, True, True, False, False, True, False, True]


def test_there_are_batches_as_far_as_they_were_told() -> None:
    orders = PassOrders(made := loader(sampler=Mixed()))
    dataset = dataset_of(made, orders)
    orders.begin()
    batches = iter(dataset)
    assert len(list(islice(batches, len(made)))) == len(made)
    orders.begin()
    assert len(list(batches)) == len(made)


def test_samples_are_made_on_one_thread() -> None:
    def collate(samples: list[Any]) -> Any:
        return torch.tensor([torch.get_num_threads()])

    orders = PassOrders(made := loader(collate_fn=collate))
    orders.begin()
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert next(iter(dataset_of(made, orders)))[0].tolist() == [1]
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_of_a_sampler_of_ones_own_each_pass_is_told_alone() -> None:
    orders = PassOrders(loader(sampler=Mixed()))
    assert [orders.begin() for _ in range(3)] == [False] * 3
    assert orders.end() == 3
    with pytest.raises(LookupError, match=r"pass 3 .* has not begun"):
        orders.of(3)


class Drawing(data.Dataset[Any]):
    """Samples with noise from all three generators; reads are counted."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, index: int) -> Any:
        self.asked.append(index)
        noise = torch.rand(()) + np.random.random() + random.random()
        return {"x": (torch.tensor(index), noise), "y": torch.tensor(index % 2)}


@pytest.mark.parametrize("streamers", [2, 6])
def test_random_samples_are_the_same_for_any_number_of_streamers(streamers: int) -> None:
    def made(count: int) -> tuple[list[list[float]], list[Drawing]]:
        torch.manual_seed(3)
        chief = PassOrders(data.DataLoader(Drawing(), BATCH, shuffle=True))
        chief.begin()
        sets = [Drawing() for _ in range(count)]
        loaders = [data.DataLoader(each, BATCH, shuffle=True) for each in sets]
        all_orders = [PassOrders(each) for each in loaders]
        for each in all_orders:
            each.decode(chief.encode())
        tasks = [
            dataset_of(each, orders).batches(index, count)
            for index, (each, orders) in enumerate(zip(loaders, all_orders, strict=True))
        ]
        length = len(loaders[0])
        return [next(tasks[n % count])[1].tolist() for n in range(length)], sets

    alone, _ = made(1)
    noises, sets = made(streamers)
    assert noises == alone
    assert len({value for batch in noises for value in batch}) == COUNT
    assert sorted(index for each in sets for index in each.asked) == list(range(COUNT))
    assert max(len(each.asked) for each in sets) <= -(-8 // streamers) * BATCH


def test_the_users_random_numbers_go_on_where_they_were() -> None:
    orders = PassOrders(made := data.DataLoader(Drawing(), BATCH))
    orders.begin()
    seed()
    expected = torch.rand(1), np.random.random(), random.random()
    seed()
    next(iter(dataset_of(made, orders)))
    assert (torch.rand(1), np.random.random(), random.random()) == expected


def test_nested_batches_are_flat_in_torchs_order_under_the_recorders_names() -> None:
    orders = PassOrders(made := data.DataLoader(Drawing(), BATCH))
    orders.begin()
    dataset = dataset_of(made, orders)
    batch = next(iter(dataset))
    assert [array.dtype.name for array in batch] == ["int64", "float32", "int64"]
    assert batch[0].tolist() == list(range(BATCH))
    assert batch[2].tolist() == [0, 1] * (BATCH // 2)
    assert dataset.names(3) == ["batch_0", "batch_1", "batch_2"]


class Unsized(data.Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(8))


REFUSED = [
    ([1, 2], "must be a torch.utils.data.DataLoader, got list"),
    (loader(sampler=Unsized()), "has no length: give its sampler, or its dataset, __len__"),
    (loader(batch_size=61, drop_last=True), "is empty: 60 samples give no batch of 61"),
]


@pytest.mark.parametrize(("given", "message"), REFUSED)
def test_a_loader_that_cannot_be_read_by_number_is_refused(given: Any, message: str) -> None:
    with pytest.raises(UsageError, match=f"run.py:3: .*{message}"):
        check(given, "run.py:3")


def test_what_has_no_effect_is_said(caplog: pytest.LogCaptureFixture) -> None:
    check(loader(num_workers=2), "run.py:3")
    assert "run.py:3: num_workers=2 has no effect" in caplog.text


BATCHES = [
    (lambda samples: "text", "a batch has no tensors, got str"),
    (lambda samples: torch.zeros(2, device="meta"), "part 0 .* got torch.float32 on meta"),
]


@pytest.mark.parametrize(("collate", "message"), BATCHES)
def test_a_batch_of_other_than_dense_tensors_is_refused(collate: Any, message: str) -> None:
    orders = PassOrders(made := loader(collate_fn=collate))
    orders.begin()
    with pytest.raises(UsageError, match=message):
        next(iter(dataset_of(made, orders)))


def test_a_batch_that_nests_otherwise_is_refused() -> None:
    def collate(samples: list[Any]) -> dict[str, Any]:
        return {f"x{int(samples[0][0]) // BATCH % 2}": torch.zeros(2)}

    orders = PassOrders(made := loader(collate_fn=collate))
    orders.begin()
    batches = iter(dataset_of(made, orders))
    next(batches)
    with pytest.raises(UsageError, match="must have the structure of the first one"):
        next(batches)


def test_a_sampler_that_belies_its_length_is_refused() -> None:
    class Short(Mixed):
        def __len__(self) -> int:
            return COUNT + BATCH

    orders = PassOrders(made := loader(sampler=Short()))
    orders.begin()
    with pytest.raises(UsageError, match="its sampler yielded 8 batches in pass 0"):
        next(iter(dataset_of(made, orders)))
