"""Layout of a job: tasks of nodes, nodes of tasks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from csrun.site import JobLayout

COUNTS = [
    # N, T, S -> tasks; the first is the documented example
    (5, 4, 2, 14),
    (14, 8, 2, 98),
    (1, 1, 0, 1),
    (4, 3, 0, 12),
    (4, 2, 3, 5),
]


@pytest.mark.parametrize(("nodes", "tasks", "single", "expected"), COUNTS)
def test_number_of_tasks(nodes: int, tasks: int, single: int, expected: int) -> None:
    layout = JobLayout(nodes, tasks, 1, single)
    assert layout.tasks == expected == len(layout.node_ids)


NODES = [
    # as Slurm places the same layout: block, cyclic, and S = 0 with its first node alone
    (JobLayout(4, 3, 1, 2, False), (0, 1, 2, 2, 2, 3, 3, 3)),
    (JobLayout(4, 3, 1, 2, True), (0, 1, 2, 3, 2, 3, 2, 3)),
    (JobLayout(3, 2, 1, 0, False), (0, 0, 1, 1, 2, 2)),
    (JobLayout(3, 2, 1, 0, True), (0, 0, 1, 2, 1, 2)),
    (JobLayout(1, 2, 1, 0, True), (0, 0)),
]


@pytest.mark.parametrize(("layout", "nodes"), NODES)
def test_node_of_each_rank(layout: JobLayout, nodes: tuple[int, ...]) -> None:
    assert layout.node_ids == nodes


@given(st.integers(0, 3), st.integers(1, 9), st.integers(1, 9))
def test_the_formula_the_other_way(single: int, full: int, tasks_per_node: int) -> None:
    """The least T and N are sufficient, one less of either is not."""
    layout = JobLayout(single + full, tasks_per_node, 1, single)
    for tasks in range(layout.tasks - full + 1, layout.tasks + 1):
        assert layout.tasks_per_node_for(tasks) == tasks_per_node
    for tasks in range(layout.tasks - tasks_per_node + 1, layout.tasks + 1):
        assert layout.nodes_for(tasks, tasks_per_node) == layout.nodes
