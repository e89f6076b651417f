"""Tree of SwarmX tasks: the fewest tasks, and each wafer's position in the order of additions."""

from math import ceil

import pytest

from csrun.context.broadcast_tree import FAN_OUT, swarmx_tasks, wafers_below


@pytest.mark.parametrize(
    ("systems", "below"),
    [
        (1, []),
        (2, [[0, 1]]),
        (4, [[0, 1, 2, 3]]),
        (6, [[4, 5], [0, 1, 2, 3]]),
        (8, [[7], [4, 5, 6], [0, 1, 2, 3]]),
    ],
)
def test_the_task_below_has_the_wafers_that_come_before(
    systems: int, below: list[list[int]]
) -> None:
    assert [list(wafers) for wafers in wafers_below(systems)] == below


@pytest.mark.parametrize("systems", range(1, 40))
def test_no_tree_of_the_fan_out_has_fewer_tasks(systems: int) -> None:
    """Each task but the last adds one child of at most FAN_OUT: systems - 1 joins in total."""
    tree = wafers_below(systems)
    assert swarmx_tasks(systems) == len(tree) == ceil((systems - 1) / (FAN_OUT - 1))
    assert sorted(w for own in tree for w in own) == list(range(systems)) or systems == 1
    for number, own in enumerate(tree):
        assert 1 < len(own) + (number < len(tree) - 1) <= FAN_OUT
