"""csctl where Slurm keeps the books."""

import json

import pytest
from support.jobs import Workplace, until
from support.testbed import Testbed

pytestmark = pytest.mark.slurm

ASKED = ("--total-nodes", "3", "--tasks-per-node", "1", "--cpus-per-task", "1",
         "--single-task-nodes", "1", "--job-name", "digits")  # fmt: skip


def test_a_job_is_shown_and_cancelled(cluster_place: Workplace, testbed: Testbed) -> None:
    cluster_place.script("import time\nopen('in', 'w').close()\ntime.sleep(600)")
    with cluster_place.start(*ASKED, "python", "run.py") as job:
        cluster_place.wait_for("in")
        listed = cluster_place.run("get", "jobs", "-o", "json", command="csctl")
        running = [found for found in json.loads(listed.stdout) if found["state"] == "RUNNING"]
        assert len(running) == 1  # of the components one job
        shown = running[0]
        assert (shown["name"], shown["nodes"], shown["tasks"]) == ("digits", 3, 3)
        assert shown["system"] == "cs2-01"
        number = str(shown["job_id"])
        assert any(line.endswith(f" {number}+0") for line in testbed.queue())
        table = cluster_place.run("get", "job", number, command="csctl")
        assert "digits" in table.stdout
        ended = cluster_place.run("cancel", "job", number, command="csctl")
        assert (ended.returncode, ended.stdout) == (0, f"job {number}: Slurm ends it\n")
        job.communicate(timeout=60)
    assert job.returncode == 143
    until(lambda: not testbed.queue())


@pytest.mark.parametrize("asked", [("get", "job"), ("cancel", "job")])
def test_a_job_that_slurm_does_not_know(cluster_place: Workplace, asked: tuple[str, str]) -> None:
    done = cluster_place.run(*asked, "99999", command="csctl")
    assert done.returncode == 2
    assert "job 99999: " in done.stderr


def test_what_only_local_books_have(cluster_place: Workplace) -> None:
    done = cluster_place.run("logs", "1", command="csctl")
    assert done.returncode == 2
    assert "its scheduler is slurm" in done.stderr
