"""A job requeued by Slurm: what it waits for, with a stand-in for squeue."""

from collections.abc import Callable

import pytest

from csrun.base.errors import CsrunError
from csrun.context import environment
from csrun.jobs.request import JobRequest
from csrun.launch.slurm import requeue, sbatch, sinfo
from csrun.site import JobLayout, Site, load

RUNNING = "7+0 7 RUNNING\n7+1 8 RUNNING\n"
LINE = "csrun_wse --sbatch python run.py"


class Cluster:
    """Slurm's answers: the steps of each query, the last one repeated."""

    def __init__(self, components: str, *steps: str) -> None:
        self._components = components
        self._steps = [*steps]
        self.cancelled: list[str] = []
        self.said: list[str] = []

    def query(self, site: Site, *command: str) -> str:
        if command[0] == "scancel":
            self.cancelled += command[1:]
            self._steps = self._steps[1:]
            raise sinfo.explain("scancel: error: Kill job error on job step id 8.0: Invalid", site)
        if "--steps" not in command:
            return self._components
        assert "--jobs=7,8" in command
        return self._steps.pop(0) if len(self._steps) > 1 and not self._waits else self._steps[0]

    _waits = False

    def hold(self) -> "Cluster":
        """Keep the steps until they are cancelled."""
        self._waits = True
        return self


@pytest.fixture
def resume(monkeypatch: pytest.MonkeyPatch) -> Callable[[Cluster], Cluster]:
    for name, value in {"POLL_S": 0.0, "MARGIN_S": 0.05, "CANCEL_S": 0.05}.items():
        monkeypatch.setattr(requeue, name, value)
    monkeypatch.setattr(requeue.orphaned_node, "SILENCE_S", 0.0)

    def run(cluster: Cluster) -> Cluster:
        monkeypatch.setattr(sinfo, "query", cluster.query)
        requeue.await_old_steps(7, load("local"), cluster.said.append, LINE)
        return cluster

    return run


def test_nothing_is_left(resume: Callable[[Cluster], Cluster]) -> None:
    assert resume(Cluster(RUNNING, "7.batch\n7.extern\n")).said == []


def test_what_leaves_is_waited_for(resume: Callable[[Cluster], Cluster]) -> None:
    cluster = resume(Cluster(RUNNING, "7.batch\n8.0\n", "7.batch\n8.0\n", "7.batch\n"))
    assert cluster.cancelled == []
    assert cluster.said == ["csrun_wse: job 7 was requeued: waiting for its old steps 8.0"]


def test_what_stays_is_cancelled(resume: Callable[[Cluster], Cluster]) -> None:
    assert resume(Cluster(RUNNING, "8.0\n", "7.batch\n").hold()).cancelled == ["8.0"]


def test_what_cannot_be_ended_ends_the_job_with_the_line(
    resume: Callable[[Cluster], Cluster],
) -> None:
    with pytest.raises(
        CsrunError, match=r"old steps 8\.0 are still running; [^$]*\n  csrun_wse --sb"
    ):
        resume(Cluster(RUNNING, "8.0\n", "8.0\n").hold())


def test_a_component_that_has_ended_ends_the_job(resume: Callable[[Cluster], Cluster]) -> None:
    with pytest.raises(CsrunError, match=r"component 7\+1 is TIMEOUT; submit it again"):
        resume(Cluster("7+0 7 RUNNING\n7+1 8 TIMEOUT\n", "8.0\n"))


def test_only_a_job_that_was_started_again_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURM_RESTART_COUNT", raising=False)
    assert environment.restarted_job() is None
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert environment.restarted_job() == 7


def test_the_line_that_submits_a_job_again() -> None:
    asked = JobRequest(("python", "run.py", "a b"), 3, max_restarts=2, site="local")
    line = sbatch.resume_line(asked, JobLayout(3, 1, 2, 0))
    assert line == (
        "csrun_wse --sbatch --total-nodes=3 --tasks-per-node=1 --cpus-per-task=2"
        " --single-task-nodes=0 --site=local --max-restarts=2 python run.py 'a b'"
    )
