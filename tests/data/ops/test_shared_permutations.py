"""Permutations shared by processes: drawn once, and published atomically."""

import os
from collections.abc import Callable

import numpy as np
import pytest

from csrun.data.ops.shared_permutations import LONGEST, PLACES, Order, SharedOrders


def drawn(epoch: int, length: int) -> Order:
    return np.random.default_rng(epoch).permutation(length).astype(np.uint16)


def never() -> Order:
    raise AssertionError("drawn again")


@pytest.mark.parametrize("length", [0, 1, 3, 4, 7185, LONGEST])
def test_an_order_is_drawn_once(length: int) -> None:
    shared = SharedOrders()
    first = shared.get(1, 7, length, lambda: drawn(7, length))
    assert np.array_equal(first, drawn(7, length))
    assert np.array_equal(shared.get(1, 7, length, never), first)


@pytest.mark.parametrize("key", [(2, 7, 8), (1, 8, 8), (1, 7, 9), (2**64 - 1, 7, 8)])
def test_another_key_is_another_order(key: tuple[int, int, int]) -> None:
    shared = SharedOrders()
    shared.get(1, 7, 8, lambda: drawn(7, 8))
    with pytest.raises(AssertionError, match="drawn again"):
        shared.get(*key, never)


def test_places_are_used_again() -> None:
    shared = SharedOrders()
    for epoch in range(4 * PLACES):
        order = shared.get(1, epoch, 100, _draw(epoch))
        assert np.array_equal(order, drawn(epoch, 100))
    for epoch in range(4 * PLACES):
        assert np.array_equal(shared.get(1, epoch, 100, _draw(epoch)), drawn(epoch, 100))


def _draw(epoch: int) -> Callable[[], Order]:
    return lambda: drawn(epoch, 100)


def test_what_is_kept_is_nobodys_to_change() -> None:
    shared = SharedOrders()
    shared.get(1, 7, 100, _draw(7))[:] = 0
    shared.get(1, 7, 100, never)[:] = 0
    assert np.array_equal(shared.get(1, 7, 100, never), drawn(7, 100))


def test_half_an_order_is_none() -> None:
    shared = SharedOrders()
    shared.get(1, 7, 100, _draw(7))
    for place in shared._places:
        place[10] += 1
    assert np.array_equal(shared.get(1, 7, 100, _draw(7)), drawn(7, 100))


def test_a_forked_process_draws_for_its_parent() -> None:
    shared = SharedOrders()
    child = os.fork()
    if not child:
        shared.get(1, 7, 100, _draw(7))
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert np.array_equal(shared.get(1, 7, 100, never), drawn(7, 100))
