"""Orders of elements, against simple implementations of tf.data's documented semantics."""

import math
import subprocess
import sys

import numpy as np
import numpy.typing as npt
import pytest

from csrun.data.indexed import Order, Range
from csrun.data.ops.repeat import RepeatOrder
from csrun.data.ops.shard import ShardOrder
from csrun.data.ops.shuffle import (
    DRAWN_LENGTH,
    ComputedPermutation,
    ShuffleOrder,
    random_source,
)


def listed(order: Order, start: int, stop: int, epoch: int = 0) -> list[int]:
    return order.at(epoch, np.arange(start, stop)).tolist()


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


@pytest.mark.parametrize("length", [DRAWN_LENGTH, DRAWN_LENGTH + 1, 300_000])
def test_a_long_shuffle_is_a_permutation_too(length: int) -> None:
    assert np.array_equal(np.sort(listed(ShuffleOrder(Range(length), 5), 0, length)), range(length))


def test_a_computed_permutation_is_one_at_every_length() -> None:
    for length in range(1, 201):
        made = ComputedPermutation.of(random_source(3, length), length)
        assert sorted(made.at(np.arange(length)).tolist()) == list(range(length))


def test_what_is_computed_of_a_part_is_the_same_part_of_the_whole() -> None:
    length = 100_003
    order = ShuffleOrder(Range(length), 9)
    whole = order.at(0, np.arange(length))
    for stride in (1, 3, 96):  # streamers that take batches in turn
        taken = np.arange(stride - 1, length, stride)
        assert np.array_equal(order.at(0, taken), whole[taken])


SEEDS = 4000
ALPHA = 1e-4  # of 12 tests; the seeds are fixed: it passes always or never


def p_of_chi_square(counts: npt.NDArray[np.int64], freedom: int) -> float:
    """P-value of a chi-square statistic. Source: Wilson and Hilferty 1931, normal approximation."""
    expected = counts.sum() / counts.size
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    z = ((chi_square / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))
    return math.erfc(z / math.sqrt(2)) / 2


@pytest.mark.parametrize("length", [3, 8, 13])
def test_a_short_shuffle_puts_each_element_and_pair_anywhere_alike(length: int) -> None:
    orders = [ShuffleOrder(Range(length), seed).at(0, np.arange(length)) for seed in range(SEEDS)]
    drawn = np.array(orders)
    places = np.array([np.bincount(drawn[:, at], minlength=length) for at in range(length)])
    assert p_of_chi_square(places, (length - 1) ** 2) > ALPHA
    pairs = np.bincount(drawn[:, 0] * length + drawn[:, -1], minlength=length**2)
    unlike = pairs.reshape(length, length)[~np.eye(length, dtype=bool)]
    assert p_of_chi_square(unlike, length * (length - 1) - 1) > ALPHA


@pytest.mark.parametrize("length", [70_000, 10**6 + 3, 10**8])
def test_a_long_shuffle_is_uniform_over_elements_and_pairs(length: int) -> None:
    """Adjacent positions, a row apart and far apart; values are counted in sixteenths."""
    row = math.isqrt(length - 1) + 1
    positions = np.array([0, 1, 2, row, row + 1, length // 2, length - 1])
    orders = [ShuffleOrder(Range(length), seed).at(0, positions) for seed in range(SEEDS)]
    part = np.array(orders) * 16 // length
    for first in range(len(positions)):
        assert p_of_chi_square(np.bincount(part[:, first], minlength=16), 15) > ALPHA
        for second in range(first):
            pairs = np.bincount(part[:, first] * 16 + part[:, second], minlength=256)
            assert p_of_chi_square(pairs, 255) > ALPHA


def test_neighbours_of_a_computed_one_come_from_anywhere() -> None:
    length = 10**6
    order = ShuffleOrder(Range(length), 1).at(0, np.arange(length))
    apart = (np.diff(order) % length) * 64 // length
    assert p_of_chi_square(np.bincount(apart, minlength=64), 63) > ALPHA


PEAK = """
import tracemalloc
import numpy as np
from csrun.data.indexed import Range
from csrun.data.ops.shuffle import ShuffleOrder
order = ShuffleOrder(Range(10**8), 2)
tracemalloc.start()
for epoch in range(3):
    order.at(epoch, np.arange(5 * 10**7, 5 * 10**7 + 128))
print(tracemalloc.get_traced_memory()[1])
"""


def test_a_shuffle_of_many_samples_takes_little_memory() -> None:
    """A full index list would take 800 MB; two cached tables and one being made take 5 MB.

    Measured in a subprocess, as tracemalloc counts all threads and earlier tests' garbage.
    """
    done = subprocess.run([sys.executable, "-c", PEAK], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 6e6


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
