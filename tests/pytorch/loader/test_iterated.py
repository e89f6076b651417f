"""Loaders over an IterableDataset, against PyTorch's own."""

import random

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the front end is PyTorch's")

from support.torch_loops import Kit, beside  # noqa: E402
from torch.utils.data import DataLoader, IterableDataset, get_worker_info  # noqa: E402

from csrun.data.errors import UnusableLoaderError  # noqa: E402
from csrun.data.input_operators import StageClock  # noqa: E402
from csrun.pytorch.loader import (  # noqa: E402
    UNKNOWN,
    WINDOW,
    PassOrders,
    batches_by_number,
    check,
    dataset_of,
)


class Stream(IterableDataset):
    """Named samples in random order. length: value of len(); is_ready: whole batches of 8."""

    def __init__(self, length=48, is_ready=False):
        self.length, self.is_ready, self.walked = length, is_ready, 0

    def __len__(self):
        return self.length // 8 if self.is_ready else self.length

    def __iter__(self):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(48, 6, dtype=torch.float64, generator=generator)
        order = list(range(48))
        random.shuffle(order)
        for start in range(0, 48, 8):
            rows = order[start : start + 8]
            self.walked += 1
            batch = [{"x": x[i], "y": torch.tensor(i % 4)} for i in rows]
            if self.is_ready:
                yield {name: torch.stack([each[name] for each in batch]) for name in ("x", "y")}
            else:
                yield from batch


@pytest.mark.parametrize("is_ready", [False, True])
def test_the_first_pass_has_the_samples_of_pytorch(tmp_path, is_ready):
    class OfStream(Kit):
        def __init__(self):
            super().__init__()
            size = None if is_ready else 8
            self.train = DataLoader(Stream(is_ready=is_ready), batch_size=size)

    def loop(kit):
        random.seed(5)
        return [kit.update(kit.criterion(kit.model(batch["x"]), batch["y"])) for batch in kit.train]

    beside(loop, tmp_path, kit=OfStream)


class Unsized(IterableDataset):
    """Batches without a length: many in the first pass, 3 in later ones."""

    def __init__(self):
        self.batches = WINDOW + 20

    def __iter__(self):
        generator = torch.Generator().manual_seed(1)
        for _ in range(self.batches):
            x = torch.randn(8, 6, dtype=torch.float64, generator=generator)
            yield {"x": x, "y": torch.arange(8) % 4}
        self.batches = 3


class OfSamples(Unsized):
    """The same with its number of samples as length."""

    def __len__(self):
        return 8 * self.batches


class OfUnsized(Kit):
    kind = Unsized

    def __init__(self):
        super().__init__()
        self.train = DataLoader(self.kind(), batch_size=None)


class OfCountedSamples(OfUnsized):
    kind = OfSamples


@pytest.mark.parametrize("kit", [OfUnsized, OfCountedSamples])
def test_a_pass_of_ready_batches_ends_where_its_data_set_does(kit, tmp_path, caplog):
    def loop(kit):
        counts, losses = [], []
        for _ in range(2):
            before = len(losses)
            for batch in kit.train:
                losses.append(kit.update(kit.criterion(kit.model(batch["x"]), batch["y"])))
            counts.append(len(losses) - before)
        assert counts == [WINDOW + 20, 3]
        return losses

    beside(loop, tmp_path, kit=kit)
    assert f"the number of batches of {kit.kind.__name__} is not known: the loop" in caplog.text


@pytest.mark.parametrize("kind", [Unsized, OfSamples])
@pytest.mark.parametrize(("threads", "ahead"), [(1, 0), (1, 4), (3, 4)])
def test_a_streamer_reads_to_the_end_of_each_pass(kind, threads, ahead):
    loader = DataLoader(kind(), batch_size=None)
    orders = PassOrders(loader)
    source = dataset_of(loader, orders)._source
    for number, length in enumerate((WINDOW + 20, 3)):
        orders.begin()
        start = number * UNKNOWN + 1
        found = list(source.deliveries(start, 2, threads, ahead, StageClock()))
        assert len(found) == length // 2


class Drawing(IterableDataset):
    """Numbers from each generator, and from the worker's."""

    def __len__(self):
        return 3

    def __iter__(self):
        for _ in range(3):
            drawn = [random.random(), np.random.rand(), torch.rand(()).item()]
            yield torch.tensor([*drawn, get_worker_info().id], dtype=torch.float64)


def test_with_workers_a_pass_is_that_of_pytorchs_only_one():
    loader = DataLoader(Drawing(), batch_size=None, num_workers=1)
    torch.manual_seed(3)
    theirs = torch.stack([batch for _ in range(2) for batch in loader])
    torch.manual_seed(3)
    orders = PassOrders(loader)
    batches, found = batches_by_number(loader, orders), []
    for number in range(2):
        orders.begin()
        found += [batches[n] for n in range(UNKNOWN * number, UNKNOWN * number + 3)]
    assert torch.equal(torch.stack(found), theirs)
    assert get_worker_info() is None


def passes(count, seed, *, taken=lambda n: True):
    """Labels of each batch that one task takes from some passes with orders sent by the chief."""
    chief, task = (DataLoader(Stream(), batch_size=8) for _ in range(2))
    random.seed(seed)
    torch.manual_seed(seed)
    orders, theirs = PassOrders(chief), PassOrders(task)
    batches, found = batches_by_number(task, theirs), {}
    for number in range(count):
        orders.begin()
        random.seed(99)  # as the task's own may be anywhere
        theirs.decode(orders.encode())
        random.seed(seed)
        for n in range(6 * number, 6 * number + 6):
            if taken(n):
                found[n] = batches[n]["x"][:, 0].tolist()
    return found


def test_tasks_take_their_own_of_the_same_batches():
    whole = passes(2, 5)
    shares = [passes(2, 5, taken=lambda n, k=k: n % 3 == k) for k in range(3)]
    assert {n: rows for share in shares for n, rows in share.items()} == whole
    for number in range(2):
        rows = [x for n in range(6 * number, 6 * number + 6) for x in whole[n]]
        assert len(set(rows)) == 48, "each sample once"
    assert [whole[n] for n in range(6)] != [whole[n] for n in range(6, 12)]


def test_a_pass_is_walked_once():
    loader = DataLoader(Stream(), batch_size=8)
    orders = PassOrders(loader)
    batches = batches_by_number(loader, orders)
    orders.begin()
    assert [batches[n]["x"].shape[0] for n in (0, 1, 2, 1, 0, 5)] == [8] * 6
    assert loader.dataset.walked == 6


def test_an_end_before_the_length_is_told_and_the_cost_of_a_walk(caplog):
    loader = DataLoader(Stream(length=96), batch_size=8)
    check(loader, "run.py:3")
    assert "run.py:3: Stream is an IterableDataset: each streamer makes all" in caplog.text
    orders = PassOrders(loader)
    batches = batches_by_number(loader, orders)
    orders.begin()
    said = r"Stream ended after 6 batches of a pass, and its length says 12"
    with pytest.raises(UnusableLoaderError, match=said):
        batches[6]
