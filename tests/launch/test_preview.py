"""Plan of a job that is not run."""

from csrun.jobs.request import JobRequest
from csrun.launch.job_plan import plan
from csrun.launch.local import LocalBackend
from csrun.site import load

REAL_CPUS = (4, 6)
LARGE = JobRequest(
    ("python-ws", "run.py"), total_nodes=14, tasks_per_node=8, cpus_per_task=16, single_task_nodes=2
)


def test_a_large_job_in_numbers() -> None:
    site = load("local")
    shown = LocalBackend(site).preview(LARGE, plan(LARGE, site, REAL_CPUS))
    assert len(shown.tasks) == 2 + 12 * 8
    assert [task.role for task in shown.tasks[:3]] == ["chief", "memoryx", "streamer"]
    assert shown.sharing.nominal_cpus == 2 * 128 + 96 * 16
    assert shown.sharing.real_cpus == 2
    assert shown.sharing.tasks_per_cpu == 98
    assert 0 < (shown.sharing.memory_mb or 0) < 3 * 1024


def test_tasks_of_one_cpu_share_the_real_ones_evenly() -> None:
    request = JobRequest(("true",), total_nodes=2, tasks_per_node=3, cpus_per_task=1)
    site = load("local")
    shown = LocalBackend(site).preview(request, plan(request, site, REAL_CPUS))
    assert shown.sharing.tasks_per_cpu == 3
    assert shown.sharing.memory_mb is None
