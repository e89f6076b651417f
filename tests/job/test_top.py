"""csrun top during a job, and after it."""

import json
import os
import sys
from typing import Any

import pytest
from support.fc_mnist import MANY_STEPS, FcMnist, losses
from support.jobs import STALL_S, until
from support.terminals import terminal

ROLES = ["chief", "wafer", "memoryx", "streamer", "streamer"]
TASKS = {"wafer-cs2-02", *(f"rank-0000{rank}" for rank in range(4))}


def last_sampled(place: FcMnist) -> set[str]:
    """The tasks whose use of CPU and memory the launcher has written down last, by log."""
    found = set[str]()
    for path in place.jobs.glob("1/usage-*.log"):
        whole = [line for line in path.read_text().splitlines(keepends=True) if line[-1] == "\n"]
        _, tasks = json.loads(whole[-1].partition(" ")[2]) if whole else (0, [])
        found |= {log for log, *_ in tasks}
    return found


def snapshot(place: FcMnist, *arguments: str) -> dict[str, Any]:
    done = place.run("top", "-o", "json", *arguments, command="csrun")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_a_job_is_shown_while_it_runs_and_when_it_has_ended(place: FcMnist) -> None:
    place.configure(runconfig__max_steps=MANY_STEPS, runconfig__log_steps=5)
    script = place.slow_copy()
    with place.start_wse("--mode", "train", script=script) as launcher:
        until(lambda: len(losses(place.model_dir)) > 5)
        until(lambda: last_sampled(place) >= TASKS)  # up to 5 s later, where the start was slow
        found = snapshot(place)
        assert [system["job"] for system in found["systems"]] == [None, 1]
        job = found["job"]
        assert job["model_dir"] == str(place.model_dir)
        run, logged = job["run"], losses(place.model_dir)
        shown = {point["step"]: point["loss"] for point in run["losses"]}
        assert {step: loss for step, loss in shown.items() if step in logged}.items() <= (
            logged.items()
        )
        assert (run["what"], run["last_step"]) == ("training", MANY_STEPS)
        assert run["step"] >= max(shown) - 1
        assert run["ends"] > found["taken"]
        assert sum(row["share"] for row in run["time"]) == pytest.approx(1)
        assert [task["role"] for task in job["tasks"]] == ROLES
        processes = place.processes(launcher.pid)
        assert {"rank-00000", "wafer-cs2-02"} <= processes.keys()
        for task in job["tasks"]:
            assert task["state"] == "running"
            assert task["memory_bytes"] > 10_000_000
            assert task["cpu_percent"] >= 0
        early = sorted(shown)[-3]  # the log's end has it, however late that is looked at
        assert any(f"global_step = {early}," in line for line in job["log"])
        at_a_terminal(place)
        launcher.communicate(timeout=STALL_S)
    found = snapshot(place, "1")
    assert found["jobs"][0]["state"] == "CANCELLED"
    # of a job that is cancelled a task may end with an error before it is told to end
    assert {task["state"] for task in found["job"]["tasks"]} <= {"ended", "failed"}
    assert found["job"]["run"]["loss"] == losses(place.model_dir)[found["job"]["run"]["step"]]


def at_a_terminal(place: FcMnist) -> None:
    """Look at the job, its log, and cancel it after the question."""
    environment = {
        **os.environ, "CSRUN_STATE_DIR": str(place.path / "state"), "TERM": "xterm",
    }  # fmt: skip
    command = (sys.executable, "-m", "csrun.cli.csrun", "top")
    with terminal(*command, environment=environment) as screen:
        screen.wait_for("GlobalRate")
        screen.type("c")
        screen.wait_for("cancel job 1?")
        screen.type("n")
        screen.wait_for("q: quit")
        screen.type("cy")
        screen.wait_for("CANCELLED, exit code 143")
        screen.type("q")
        assert screen.exit_code() == 0
        assert screen.is_cooked


def test_a_job_that_there_is_not(place: FcMnist) -> None:
    done = place.run("top", "7", command="csrun")
    assert (done.returncode, done.stdout) == (2, "")
    assert "job 7: no such job on site local" in done.stderr
    done = place.run("top", command="csrun")
    assert done.returncode == 0
    assert "0 running, 0 waiting" in done.stdout
