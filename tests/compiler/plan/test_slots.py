"""Placement of weight groups in the wafer's slots: neighbours do not overlap, in little memory."""

from itertools import combinations, pairwise

import numpy as np
import pytest

from csrun.compiler.plan.slots import place_gradients, place_groups
from csrun.executable import Visit


def chain(groups):
    return [*range(groups), *reversed(range(groups))]


def overlapping(sizes, order, ahead_bytes=0):
    """Consecutive groups of an order that overlap, and the length of the slots."""
    offsets, length = place_groups(sizes, order, ahead_bytes)
    assert all(0 <= o <= o + n <= length for o, n in zip(offsets, sizes, strict=True))
    pairs = {frozenset(pair) for pair in pairwise(order)}
    found = [
        tuple(pair)
        for pair in (p for p in pairs if len(p) == 2)
        if len(
            {*range(offsets[a := min(pair)], offsets[a] + sizes[a])}
            & {*range(offsets[b := max(pair)], offsets[b] + sizes[b])}
        )
    ]
    return found, length


def test_slots_of_a_chain_are_as_long_as_its_two_largest_neighbours():
    """Instead of the sum of the largest even and the largest odd group, 200 here."""
    assert overlapping([100, 1, 1, 100], chain(4)) == ([], 101)
    assert overlapping([3, 10, 8, 10], chain(4)) == ([], 18)
    assert overlapping([7], chain(1)) == ([], 7)
    assert place_groups([], []) == ([], 0)


@pytest.mark.parametrize("seed", range(20))
def test_neighbours_of_any_chain_lie_apart(seed):
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 50, random.integers(1, 9)).tolist()
    found, length = overlapping(sizes, chain(len(sizes)))
    assert found == []
    assert length == max([a + b for a, b in pairwise(sizes)], default=sizes[0])
    assert length <= 2 * max(sizes)


def tied(groups):
    """Order in which the first group is visited again before the backward pass, and at its end."""
    return [*range(groups), 0, 0, *reversed(range(groups))]


@pytest.mark.parametrize("groups", [2, 3, 4, 5, 6])
def test_a_large_group_visited_twice_overlaps_no_other(groups):
    """A large table: its second copy would take the memory of two blocks."""
    found, length = overlapping([100, *[30] * (groups - 1)], tied(groups))
    assert found == []
    assert length <= 200


def test_where_three_equal_neighbours_meet_one_waits_for_its_turn():
    found, length = overlapping([10, 10, 10], tied(3))
    assert len(found) == 1
    assert length == 20


@pytest.mark.parametrize("seed", range(10))
def test_slots_leave_room_for_prefetched_groups(seed):
    """Groups that follow another do not overlap it, as far as they fit next to the largest one."""
    random = np.random.default_rng(seed)
    sizes = [60, *random.integers(5, 15, 3).tolist() * 5]
    found, length = overlapping(sizes, tied(len(sizes)), 40)
    assert found == []
    assert length <= 60 + 40
    offsets, _ = place_groups(sizes, chain(len(sizes)), 40)
    places = [{*range(o, o + n)} for o, n in zip(offsets, sizes, strict=True)]
    for first in range(len(sizes)):
        for last in range(first + 1, len(sizes)):
            if sum(sizes[first + 1 : last + 1]) <= 40:
                assert not places[first] & places[last]


def visit(gradients, completes=None):
    return Visit(
        "backward", (), tuple(gradients), tuple(gradients if completes is None else completes)
    )


def test_gradients_that_come_in_turn_take_two_places():
    sizes = [64, 192, 128, 64, 256, 64]
    visits = [Visit("forward"), *(visit([group]) for group in reversed(range(6)))]
    offsets, length = place_gradients(sizes, visits)
    assert length == 64 + 256
    for pair in pairwise(range(6)):
        first, second = sorted((offsets[group], sizes[group]) for group in pair)
        assert sum(first) <= second[0]


def test_gradients_with_overlapping_lifetimes_are_disjoint():
    """Table used first and last, two groups of one visit, and a group completed by a later one."""
    visits = [visit([0], []), visit([4]), visit([3, 2]), visit([1], []), visit([0]), visit([], [1])]
    sizes = [512, 64, 64, 64, 64, 64]
    offsets, length = place_gradients(sizes, visits)
    places = [range(o, o + n) for o, n in zip(offsets[:5], sizes, strict=False)]
    assert not any({*a} & {*b} for a, b in combinations(places, 2))
    assert offsets[5] is None  # it has none
    assert length == 512 + 4 * 64


def test_many_small_parts_lie_beside_a_large_group() -> None:
    """As with a low `max_group_bytes` and one matrix that is not split."""
    sizes = [64] * 400 + [1 << 20]
    offsets, length = place_groups(sizes, chain(len(sizes)), 1 << 20)
    assert length <= 2 << 20
    ends = sorted((offset, offset + size) for offset, size in zip(offsets, sizes, strict=True))
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
