"""Waiting for a phase of a job, by polling its scheduler."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from csrun.jobs.record import RecordState
from csrun.launch.backend import JobStatus

# seconds between polls; a long wait polls rarely, to spare the scheduler
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
LONGER = 1.3


class AwaitedPhase(StrEnum):
    """Phase to wait for; completed: ended with exit code 0."""

    ENDED = "ended"
    COMPLETED = "completed"
    RUNNING = "running"


@dataclass(frozen=True)
class Waited:
    """The job at the end of a wait, and whether it reached the phase."""

    job: JobStatus
    is_met: bool


def wait_for(look: Callable[[], JobStatus], phase: AwaitedPhase, limit_s: float | None) -> Waited:
    """Wait until a job reaches a phase, can no longer reach it, or the time is over."""
    deadline_s = float("inf") if limit_s is None else time.monotonic() + limit_s
    pause_s = FIRST_PAUSE_S
    while True:
        job = look()
        if _is_in(job, phase):
            return Waited(job, True)
        if job.ended is not None or time.monotonic() >= deadline_s:
            return Waited(job, False)
        time.sleep(min(pause_s, max(0.0, deadline_s - time.monotonic())))
        pause_s = min(LONGEST_PAUSE_S, LONGER * pause_s)


def _is_in(job: JobStatus, phase: AwaitedPhase) -> bool:
    match phase:
        case AwaitedPhase.ENDED:
            return job.ended is not None
        case AwaitedPhase.COMPLETED:
            return job.state == RecordState.COMPLETED
        case AwaitedPhase.RUNNING:
            return job.ended is None and job.state != RecordState.PENDING and job.elapsed_s > 0
