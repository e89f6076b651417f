"""The planner: tables of options and the resulting plans."""

import sys

import msgspec
import pytest

from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.context import Role
from csrun.jobs.request import JobRequest
from csrun.launch.job_plan import plan
from csrun.launch.slurm.backend import SlurmBackend
from csrun.site import Scheduler, Site, load

SITE = load("local")  # 16 nodes of 128 CPUs; by default 4 nodes, 2 tasks a node, 16 CPUs a task
STREAMING_8 = load("streaming-8")
ADDRESSES = tuple(f"10.0.0.{node}" for node in range(1, 17))
MACHINES = msgspec.structs.replace(
    STREAMING_8, nodes=msgspec.structs.replace(STREAMING_8.nodes, addresses=ADDRESSES)
)
CPUS = (0, 1)
WS, PY, OTHER = ("python-ws", "run.py"), ("python", "run.py"), ("hostname",)

RESOLVED = [
    # T, C asked -> T, C
    (None, None, 2, 16),
    (3, None, 3, 16),  # the default C fits
    (20, None, 20, 6),  # it does not: 128 // 20
    (None, 32, 4, 32),  # the most that fit a node
    (None, 1, 128, 1),
    (5, 7, 5, 7),
]


@pytest.mark.parametrize(("tasks", "cpus", "got_tasks", "got_cpus"), RESOLVED)
def test_tasks_and_cpus(tasks: int | None, cpus: int | None, got_tasks: int, got_cpus: int) -> None:
    layout = plan(JobRequest(PY, 4, tasks, cpus), SITE, CPUS).layout
    assert (layout.tasks_per_node, layout.cpus_per_task) == (got_tasks, got_cpus)


ROLES = [
    (WS, ExecutionMode.WEIGHT_STREAMING, [Role.CHIEF, Role.MEMORYX, Role.STREAMER, Role.STREAMER]),
    (PY, ExecutionMode.PIPELINED, [Role.CHIEF] + [Role.STREAMER] * 5),
    (("python-pt", "x.py"), ExecutionMode.PIPELINED, [Role.CHIEF] + [Role.STREAMER] * 5),
    (("python3", "x.py"), ExecutionMode.PIPELINED, [Role.CHIEF] + [Role.STREAMER] * 5),
    ((sys.executable, "x.py"), ExecutionMode.PIPELINED, [Role.CHIEF] + [Role.STREAMER] * 5),
    (("/usr/bin/perl", "x.pl"), None, [Role.TASK] * 6),
    (OTHER, None, [Role.TASK] * 6),
]


@pytest.mark.parametrize(("command", "mode", "roles"), ROLES)
def test_roles(command: tuple[str, ...], mode: ExecutionMode | None, roles: list[Role]) -> None:
    got = plan(JobRequest(command, 3), SITE, CPUS)
    assert got.mode is mode
    assert [task.role for task in got.tasks] == roles


@pytest.mark.parametrize("command", [(*WS, "--num_wgt_servers", "3"), WS])
def test_memoryx_tasks_have_the_ranks_behind_the_chief(command: tuple[str, ...]) -> None:
    got = plan(JobRequest(command, 6, num_wgt_servers=3), SITE, CPUS)
    assert [task.role for task in got.tasks[:5]] == [Role.CHIEF, *[Role.MEMORYX] * 3, Role.STREAMER]
    assert [task.node_id for task in got.tasks[:6]] == [0, 1, 2, 3, 4, 4]


@pytest.mark.parametrize(
    ("site", "systems", "swarmx"),
    [(SITE, 4, 0), (MACHINES, 1, 0), (MACHINES, 4, 1), (MACHINES, 9, 3)],
)
def test_swarmx_tasks_have_the_ranks_behind_memoryx(site: Site, systems: int, swarmx: int) -> None:
    """With nodes as separate machines; the site has 8 systems, the script refuses 9 later."""
    command = (*WS, f"--num_csx={systems}", "--num_wgt_servers", "2")
    got = plan(JobRequest(command, 8, 2, 1), site, CPUS)
    roles = [Role.CHIEF, *[Role.MEMORYX] * 2, *[Role.SWARMX] * swarmx, Role.STREAMER]
    assert [task.role for task in got.tasks[: len(roles)]] == roles
    assert got.layout.single_task_nodes == 3 + swarmx
    assert got.layout.tasks_by_node == (1,) * (3 + swarmx) + (2,) * (5 - swarmx)


def test_local_ranks_count_within_a_node() -> None:
    tasks = plan(JobRequest(WS, 4, 2, 1, cyclic=True), SITE, CPUS).tasks
    assert [(t.node_id, t.local_rank) for t in tasks] == [
        (0, 0), (1, 0), (2, 0), (3, 0), (2, 1), (3, 1),
    ]  # fmt: skip


def test_tasks_share_the_real_cpus_in_turn() -> None:
    tasks = plan(JobRequest(OTHER, 1, 4, 2), SITE, (3, 5, 7)).tasks
    assert [t.cpus for t in tasks] == [(3, 5), (3, 7), (5, 7), (3, 5)]
    alone, *_ = plan(JobRequest(WS, 3), SITE, (3, 5, 7)).tasks
    assert alone.cpus == (3, 5, 7)


def test_slurms_nodes_are_machines_with_swarmx_between() -> None:
    site = msgspec.structs.replace(STREAMING_8, scheduler=Scheduler.SLURM, gres="cs:{system}:1")
    got = SlurmBackend(site).plan(JobRequest((*WS, "--num_csx", "2"), 4))
    roles = [Role.CHIEF, Role.MEMORYX, Role.SWARMX, Role.STREAMER]
    assert [task.role for task in got.tasks[:4]] == roles
    assert got.layout.single_task_nodes == 3
    one = SlurmBackend(msgspec.structs.replace(site, gres="cs:1"))
    assert one.plan(JobRequest((*WS, "--num_csx", "1"), 4)).layout.single_task_nodes == 2
    with pytest.raises(UsageError, match=r"--num_csx must be 1 on .* 2: gres cs:1 does"):
        one.plan(JobRequest((*WS, "--num_csx", "2"), 4))


REFUSED_OF_MACHINES = [
    (
        JobRequest((*WS, "--num_csx", "4"), 6, single_task_nodes=2),
        r"at least 3 for python-ws \(one for the chief, one for MemoryX, one for SwarmX\), got 2: "
        "use --single-task-nodes 3 with --total-nodes 6,",
    ),
    (
        JobRequest((*WS, "--num_csx", "6", "--num_wgt_servers", "2"), 5),
        r"at least 6 for python-ws \(chief, 2 MemoryX tasks, 2 SwarmX tasks and one node of "
        r"streamers\), got 5: use --total-nodes 6",
    ),
    (
        JobRequest((*WS, "--num_csx", "4"), 16, num_wgt_servers=14),
        "at most 13 on site .*, got 14: its 16 nodes also run the chief, 1 SwarmX and streamers",
    ),
]


@pytest.mark.parametrize(("request_", "message"), REFUSED_OF_MACHINES)
def test_refused_on_machines(request_: JobRequest, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(request_, MACHINES, CPUS)


REFUSED = [
    (JobRequest(PY, 17), "1 to 16, .*got 17"),
    (JobRequest(PY, 0), "1 to 16, .*got 0"),
    (JobRequest(PY, 4, single_task_nodes=4), "0 to 3.*got 4"),
    (JobRequest(PY, 2, single_task_nodes=5), "0 to 1.*got 5"),
    (JobRequest(WS, 2), "at least 3 for python-ws.*got 2"),
    (JobRequest(WS, 4, single_task_nodes=1), "at least 2 for python-ws.*got 1"),
    (JobRequest(WS, 4, single_task_nodes=0), "at least 2 for python-ws.*got 0"),
    (JobRequest(WS, 3, num_wgt_servers=2), "at least 4 for .*2 MemoryX tasks.*use --total-nodes 4"),
    (
        JobRequest(WS, 3, single_task_nodes=2, num_wgt_servers=3),
        "at least 4 for .*got 2: use --single-task-nodes 4 with --total-nodes 5",
    ),
    (JobRequest((*WS, "--num_wgt_servers=2"), 3), "use --total-nodes 4"),
    (
        JobRequest((*WS, "--num_wgt_servers", "2"), 9, num_wgt_servers=3),
        "num_wgt_servers 2: give only",
    ),
    (JobRequest(PY, 9, num_wgt_servers=2), "python has no MemoryX"),
    (JobRequest(WS, 16, num_wgt_servers=15), "at most 14 on site local"),
    (JobRequest(PY, 4, 9, 16), "144 CPUs.*128: use --tasks-per-node 8 or --cpus-per-task 14"),
    (JobRequest(PY, 4, None, 129), "129 CPUs.*128: use --cpus-per-task 128"),
    (JobRequest(PY, 4, 0, 1), "at least 1, got 0 and 1"),
]


@pytest.mark.parametrize(("request_", "message"), REFUSED)
def test_refused(request_: JobRequest, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(request_, SITE, CPUS)
