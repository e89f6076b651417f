"""Orders of elements, against tf.data's documented semantics written out by hand."""

import numpy as np
import pytest

from csrun.data.indexed import Order, Range
from csrun.data.ops.repeat import RepeatOrder
from csrun.data.ops.shard import ShardOrder
from csrun.data.ops.shuffle import ShuffleOrder


def listed(order: Order, start: int, stop: int, epoch: int = 0) -> list[int]:
    return order.numbers(epoch, start, stop).tolist()


def test_repeat_goes_on_across_the_border_of_two_passes() -> None:
    assert [n % 3 for n in listed(RepeatOrder(Range(3), None), 1, 8)] == [1, 2, 0, 1, 2, 0, 1]


def test_repeat_counts_passes_in_the_element_numbers() -> None:
    assert [n // 3 for n in listed(RepeatOrder(Range(3), 2), 0, 6, epoch=1)] == [2, 2, 2, 3, 3, 3]


def test_a_repeat_of_a_repeat_multiplies() -> None:
    order = RepeatOrder(RepeatOrder(Range(4), 2), 3)
    assert order.length == 24
    assert [n % 4 for n in listed(order, 0, 24)] == [0, 1, 2, 3] * 6


@pytest.mark.parametrize("length", [1, 2, 257])
def test_shuffle_is_a_permutation(length: int) -> None:
    assert sorted(listed(ShuffleOrder(Range(length), 5), 0, length)) == list(range(length))


def test_shuffle_depends_on_seed_and_pass_alone() -> None:
    first = listed(ShuffleOrder(Range(100), 1), 0, 100)
    assert first == listed(ShuffleOrder(Range(100), 1), 0, 100)
    assert first != listed(ShuffleOrder(Range(100), 2), 0, 100)
    assert first != [n - 100 for n in listed(ShuffleOrder(Range(100), 1), 0, 100, epoch=1)]


def test_shuffle_is_drawn_by_philox_keyed_by_seed_and_pass() -> None:
    key = np.array([7, 2], np.uint64)
    expected = np.random.Generator(np.random.Philox(key=key)).permutation(10)
    assert [n % 10 for n in listed(ShuffleOrder(Range(10), 7), 0, 10, epoch=2)] == expected.tolist()


def test_repeated_shuffle_is_another_permutation_each_pass() -> None:
    numbers = [n % 50 for n in listed(RepeatOrder(ShuffleOrder(Range(50), 3), None), 0, 150)]
    passes = [numbers[i : i + 50] for i in (0, 50, 100)]
    assert all(sorted(p) == list(range(50)) for p in passes)
    assert passes[0] != passes[1] != passes[2] != passes[0]


def test_shuffle_over_a_repeat_mixes_the_passes() -> None:
    numbers = listed(ShuffleOrder(RepeatOrder(Range(40), 2), 3), 0, 80)
    assert sorted(numbers) == list(range(80))
    assert {n // 40 for n in numbers[:40]} == {0, 1}


def test_any_window_is_a_part_of_the_whole() -> None:
    order = RepeatOrder(ShuffleOrder(ShardOrder(Range(31), 3, 1), 9), None)
    whole = listed(order, 0, 60)
    for start, stop in [(0, 1), (9, 12), (5, 47), (59, 60), (20, 20)]:
        assert listed(order, start, stop) == whole[start:stop]


@pytest.mark.parametrize(("count", "index", "expected"), [(3, 0, [0, 3, 6]), (3, 2, [2, 5])])
def test_shard_takes_every_nth(count: int, index: int, expected: list[int]) -> None:
    order = ShardOrder(Range(7), count, index)
    assert order.length == len(expected)
    assert listed(order, 0, len(expected)) == expected


def test_shards_of_an_endless_order() -> None:
    order = ShardOrder(RepeatOrder(Range(4), None), 3, 1)
    assert order.length is None
    assert [n % 4 for n in listed(order, 0, 5)] == [1, 0, 3, 2, 1]
