"""csrun_wse --array on a cluster: one job per element, or submitted scripts."""

import csv
import io
from pathlib import Path

import pytest
from support.jobs import Sandbox, until
from support.testbed import Testbed

pytestmark = pytest.mark.slurm

FC_MNIST = Path(__file__).parents[2] / "reference_models" / "fc_mnist" / "run.py"
TINY = ("python-ws", str(FC_MNIST), "--max_steps", "3", "--set", "model.hidden_sizes=[5]")
RATES = ("--array", "1-2", "--set", "optimizer.learning_rate=0.1,0.01")


def rows_of(place: Sandbox, array_id: int) -> list[dict[str, str]]:
    done = place.csctl("get", "array", str(array_id), "-o", "csv")
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_elements_are_jobs_of_the_scheduler(cluster_place: Sandbox) -> None:
    done = cluster_place.run(*RATES, "--total-nodes", "4", *TINY)
    assert done.returncode == 0, done.stderr
    rows = rows_of(cluster_place, 1)
    assert [row["optimizer.learning_rate"] for row in rows] == ["0.1", "0.01"]
    assert [(row["state"], row["steps"]) for row in rows] == [("COMPLETED", "3")] * 2
    assert len({row["job"] for row in rows} - {""}) == 2


def test_elements_are_submitted(cluster_place: Sandbox, testbed: Testbed) -> None:
    done = cluster_place.run(*RATES, "--sbatch", "--total-nodes", "4", *TINY)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Submitted batch job") == 2
    assert len({row["job"] for row in rows_of(cluster_place, 1)} - {""}) == 2  # while they wait
    until(lambda: not testbed.queue())
    rows = rows_of(cluster_place, 1)
    assert [(row["state"], row["steps"]) for row in rows] == [("COMPLETED", "3")] * 2


def test_submitted_elements_are_cancelled(cluster_place: Sandbox, testbed: Testbed) -> None:
    cluster_place.script(
        "import os, time\n"
        "open('runs-' + os.environ['CSRUN_ARRAY_TASK_ID'], 'w').close()\n"
        "time.sleep(600)\n"
    )
    words = ("--array", "1-2", "--sbatch", "--total-nodes", "4", "python", "run.py")
    done = cluster_place.run(*words)
    assert done.returncode == 0, done.stderr
    cluster_place.wait_for("runs-1")
    cancelled = cluster_place.csctl("cancel", "array", "1")
    assert cancelled.stdout.count("Slurm ends it") == 2
    until(lambda: not testbed.queue())
    assert not (cluster_place.path / "runs-2").exists()
