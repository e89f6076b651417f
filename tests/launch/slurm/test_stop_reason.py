"""Event for which Slurm ends a job, from squeue's JSON of two versions."""

import json
import subprocess
from typing import Any

import pytest

from csrun.launch.slurm import commands
from csrun.launch.slurm.stop_reason import parse_stop_reason, stop_reason


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        ({"job_state": "CANCELLED"}, "cancelled with scancel"),
        ({"job_state": ["CANCELLED", "COMPLETING"]}, "cancelled with scancel"),
        ({"job_state": "COMPLETING", "state_reason": "None"}, "cancelled with scancel"),
        ({"job_state": "COMPLETING", "state_reason": "TimeLimit"}, "time limit of Slurm reached"),
        ({"job_state": "TIMEOUT", "preempt_time": 0}, "time limit of Slurm reached"),
        ({"job_state": ["TIMEOUT", "COMPLETING"]}, "time limit of Slurm reached"),
        ({"job_state": "RUNNING", "preempt_time": 1764400000}, "preempted by Slurm"),
        ({"job_state": ["RUNNING"], "preempt_time": {"set": True, "number": 1764400000}},
         "preempted by Slurm"),
        ({"job_state": "PREEMPTED"}, "preempted by Slurm"),
        ({"job_state": ["RUNNING"], "preempt_time": {"set": False, "number": 0}}, ""),
        ({"job_state": "RUNNING", "end_time": 1030}, "time limit of Slurm reached"),
        ({"job_state": ["RUNNING"], "end_time": {"set": True, "number": 1091}}, ""),
        ({"job_state": "RUNNING", "end_time": 0}, ""),
        ({"preempt_time": None}, ""),
    ],
)  # fmt: skip
def test_states(job: dict[str, Any], reason: str) -> None:
    other = {"job_id": 6, "job_state": "FAILED"}
    answer = json.dumps({"jobs": [other, {"job_id": 7, **job}]})
    assert parse_stop_reason(answer, 7, 1090) == reason


@pytest.mark.parametrize("answer", ["", "slurm_load_jobs error", '{"jobs": []}', '{"errors": []}'])
def test_slurm_does_not_say(answer: str) -> None:
    assert parse_stop_reason(answer, 7, 0) == ""


def test_slurm_is_waited_for_as_long_as_the_tasks_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """The query is for one job only."""
    asked: list[tuple[tuple[str, ...], float]] = []

    def run(words: tuple[str, ...], timeout: float, **options: object) -> None:
        asked.append((words, timeout))
        raise subprocess.TimeoutExpired(words, timeout)

    monkeypatch.setattr(commands.subprocess, "run", run)
    assert [stop_reason(7, grace_s) for grace_s in (10.0, 60.0)] == ["", ""]
    words = ("squeue", "--json", "--jobs=7")
    assert asked == [(words, 1.0), (words, 2.0)]
