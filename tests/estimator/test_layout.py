"""Options recommended for more streamers, against the rule for the number of a job's tasks."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.base.run_config import CSRunConfig
from csrun.context import Role, TaskContext
from csrun.context.job import JobFile, TaskEntry
from csrun.estimator.layout_advice import LayoutAdvice
from csrun.estimator.target import target_of
from csrun.site import Nodes

NODES = Nodes(count=16, cpus=64, memory_gb=1)


def job(nodes: int, tasks: int, single: int, streaming: bool) -> JobFile:
    """Job of S single-task nodes and N - S nodes of T tasks; MemoryX is the second task."""
    counts = [1] * single + [tasks] * (nodes - single)
    places = [node for node, count in enumerate(counts) for _ in range(count)]
    roles = {0: Role.CHIEF} | ({1: Role.MEMORYX} if streaming else {})
    mode = ExecutionMode.WEIGHT_STREAMING if streaming else ExecutionMode.PIPELINED
    entries = tuple(
        TaskEntry(rank, roles.get(rank, Role.STREAMER), f"node{node + 1}", node, 0, (0,))
        for rank, node in enumerate(places)
    )
    return JobFile(1, mode, ("python",), ".", "local", nodes, 4, entries)


@pytest.mark.parametrize(
    ("layout", "streamers", "options"),
    [
        ((3, 2, 2, True), 8, "--tasks-per-node 8"),
        ((3, 1, 2, True), 8, "--tasks-per-node 8"),
        ((5, 2, 2, True), 8, "--tasks-per-node 3"),
        ((5, 2, 3, True), 8, "--tasks-per-node 4"),  # one streams on a single-task node
        ((4, 2, 0, False), 8, "--tasks-per-node 3"),  # 12 tasks, the chief among them
        ((1, 1, 0, False), 2, "--tasks-per-node 3"),
        ((3, 2, 2, True), 33, "--total-nodes 5 --tasks-per-node 16"),  # 64 CPUs, 4 a task
        ((3, 2, 2, True), 224, "--total-nodes 16 --tasks-per-node 16"),
        ((3, 2, 2, True), 225, "the site has only 16 nodes: speed up input_fn"),
    ],
)
def test_the_next_run_has_enough_streamers(layout, streamers, options):
    assert LayoutAdvice.of(job(*layout), NODES).options_for(streamers) == options


@pytest.mark.parametrize(
    ("layout", "streamers", "options"),
    [
        ((3, 2, 2, True), 5, "--total-nodes 3 --tasks-per-node 5"),
        ((5, 2, 2, True), 9, "--total-nodes 5 --tasks-per-node 3"),
        ((5, 2, 2, True), 8, "--total-nodes 3 --tasks-per-node 8"),  # 8 is not 3 times anything
        ((5, 2, 2, True), 34, "--total-nodes 19 --tasks-per-node 2"),  # 17 do not fit a node
        ((4, 2, 0, False), 7, "--total-nodes 4 --tasks-per-node 2"),
        ((4, 2, 0, False), 4, "--total-nodes 1 --tasks-per-node 5"),
    ],
)
def test_the_next_run_has_just_so_many_streamers(layout, streamers, options):
    assert LayoutAdvice.of(job(*layout), NODES).options_for_exactly(streamers) == options


def test_a_run_of_another_number_of_memoryx_tasks_is_told_how_to_start() -> None:
    of_job = job(3, 1, 2, True)
    context = TaskContext(Path(), of_job, of_job.tasks[0])
    run = SimpleNamespace(config=CSRunConfig(num_wgt_servers=2), context=context)
    options = "csrun_wse --num-wgt-servers 2, and at least --total-nodes 4 --single-task-nodes 3"
    with pytest.raises(UsageError, match=f"MemoryX tasks 1, got 2: start it with {options}"):
        target_of(run)
