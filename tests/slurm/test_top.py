"""csrun top on a cluster."""

import json
from typing import Any

import pytest
from support.jobs import STALL_S, Sandbox, until

pytestmark = pytest.mark.slurm

ASKED = ("--total-nodes", "2", "--tasks-per-node", "2", "--cpus-per-task", "1")
SLEEP = "touch up.$SLURM_PROCID; exec sleep 600"


def test_it_shows_the_same(cluster_place: Sandbox) -> None:
    with cluster_place.start(*ASKED, "sh", "-c", SLEEP) as launcher:
        cluster_place.wait_for(*(f"up.{rank}" for rank in range(4)))
        found: list[dict[str, Any]] = []

        def runs() -> bool:
            done = cluster_place.run("top", "-o", "json", command="csrun")
            assert done.returncode == 0, done.stderr
            found[:] = [json.loads(done.stdout)]
            states = {task["state"] for task in found[0]["job"]["tasks"]}
            return states == {"running"}

        until(runs)
        tasks = found[0]["job"]["tasks"]
        assert [(task["rank"], task["state"]) for task in tasks] == [
            (rank, "running") for rank in range(4)
        ]
        assert all(task["memory_bytes"] for task in tasks)
        assert {task["log"] for task in tasks} == {f"rank-{rank:05}" for rank in range(4)}
        launcher.terminate()
        launcher.communicate(timeout=STALL_S)
