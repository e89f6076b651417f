"""First batch of streamers, among a loop's loaders."""

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler  # noqa: E402

from csrun.pytorch.step.variant import Batches  # noqa: E402
from csrun.pytorch.user import SessionLoader  # noqa: E402

DATA = TensorDataset(torch.arange(40))
BATCHES = 5  # of a pass


def flush() -> None:
    """Does nothing, as no calls are queued."""


def test_streamers_begin_with_the_next_pass_where_the_next_batch_is_unknown():
    """The order of the next pass is known; that of a pass taken by an earlier run is not."""
    batches = Batches(SessionLoader(DataLoader(DATA, 8, shuffle=True)), 0)
    batches.begin(flush)
    torch.rand(3)  # moves the generator, as passes over other loaders do
    batches.begin(flush)
    assert batches.next is None
    assert batches.upcoming == 2 * BATCHES < batches.last
    batches.loader.orders.of(2)
    batches.next = 7
    assert batches.upcoming == 7


def test_streamers_begin_with_no_batch_where_the_next_order_is_unknown():
    sampler = WeightedRandomSampler(torch.ones(40), 40)
    batches = Batches(SessionLoader(DataLoader(DATA, 8, sampler=sampler)), 0)
    batches.begin(flush)
    assert batches.upcoming == batches.last == BATCHES
