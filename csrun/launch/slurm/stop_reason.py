"""Reason why Slurm ends a job, queried from its controller while the job's tasks end.

Source: squeue(1), --json, and JOB STATE CODES, JOB REASON CODES; srun(1), --signal
"""

import time
from contextlib import suppress
from typing import Any

import msgspec

from csrun.context.deferred_termination import reason_wait_s
from csrun.launch.slurm.commands import call

_PREEMPTED, _SCANCEL = "preempted by Slurm", "cancelled with scancel"
_TIME_LIMIT = "time limit of Slurm reached"
EARLIER_S = 60.0
_BY_STATE = {
    "TimeLimit": _TIME_LIMIT,
    "TIMEOUT": _TIME_LIMIT,
    "DEADLINE": "deadline of Slurm reached",
    "NodeDown": "node failed in Slurm",
    "NODE_FAIL": "node failed in Slurm",
    "PREEMPTED": _PREEMPTED,
    "CANCELLED": _SCANCEL,
    "COMPLETING": _SCANCEL,  # a job whose tasks run; Slurm 22.05 shows no other state meanwhile
}


def stop_reason(job_id: int, grace_s: float) -> str:
    """Return why Slurm ends a job; empty if Slurm reports no reason in the time that tasks wait.

    grace_s: time before its time limit at which Slurm signals the job, up to a minute earlier.
    """
    # Slurm 22.05 ignores the job's number, and answers with all jobs.
    answer = call("squeue", "--json", f"--jobs={job_id}", answer_s=reason_wait_s(grace_s))
    return parse_stop_reason(answer, job_id, time.time() + grace_s + EARLIER_S)


def parse_stop_reason(text: str, job_id: int, limit_before_s: float) -> str:
    """Parse the reason in squeue's answer; a job that ends before that time is at its limit."""
    with suppress(msgspec.DecodeError, LookupError, TypeError):
        for job in msgspec.json.decode(text)["jobs"]:
            if job["job_id"] == job_id:
                if (
                    _time_of(job.get("preempt_time")) > 0
                ):  # the state does not change in the grace period
                    return _PREEMPTED
                if job["job_state"] in ("RUNNING", ["RUNNING"]):
                    ends_s = _time_of(job.get("end_time"))
                    return _TIME_LIMIT if 0 < ends_s <= limit_before_s else ""
                state = job["job_state"]
                states = {job.get("state_reason"), *([state] if isinstance(state, str) else state)}
                return next((_BY_STATE[each] for each in _BY_STATE if each in states), "")
    return ""


def _time_of(value: Any) -> int:
    return int(value["number"] if isinstance(value, dict) else value or 0)
