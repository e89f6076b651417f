"""Results of an array: one row per element, from its job and its model_dir."""

import os
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path

import msgspec

from csrun.base.errors import EXIT_INTERRUPTED
from csrun.base.files import account_name
from csrun.jobs.record import RecordState
from csrun.launch.array.array_elements import ARRAY_LABEL, INDEX_LABEL, ArrayElement
from csrun.launch.array.array_file import ArrayFile
from csrun.launch.backend import JobStatus
from csrun.records.run_result import RunResult, result_of

_CLOCKS = timedelta(seconds=2)  # Slurm's times have a resolution of one second
_CANCELLED = (EXIT_INTERRUPTED, 129, 143)  # ended by Ctrl-C, SIGHUP, SIGTERM


class ElementRow(msgspec.Struct, frozen=True):
    """Row of one element, for a table or JSON.

    state: state of its job, as the scheduler names it; PENDING before the job exists.
    model_dir: absolute path.
    """

    index: int
    job: int | None
    values: dict[str, str]
    state: str
    exit_code: int | None
    step: int | None
    loss: float | None
    samples_per_sec: float | None
    model_dir: str | None
    why: str = ""


def rows_of(array: ArrayFile, jobs: Iterable[JobStatus]) -> list[ElementRow]:
    """Return the rows of all elements, in order."""
    job_of = _jobs_by_index(array, jobs)
    return [_row(array, element, job_of.get(str(element.index))) for element in array.elements]


def active_jobs(array: ArrayFile, jobs: Iterable[JobStatus]) -> list[int]:
    """Jobs of an array that have not ended."""
    found = _jobs_by_index(array, jobs).values()
    return sorted(job.job_id for job in found if job.ended is None)


def _jobs_by_index(array: ArrayFile, jobs: Iterable[JobStatus]) -> dict[str, JobStatus]:
    """Return the jobs of an array by element; of several, such as a compile and its training, the
    newest.
    """
    own, number = account_name(os.getuid()), str(array.array_id)
    return {
        job.labels.get(INDEX_LABEL, ""): job
        for job in sorted(jobs, key=lambda job: job.job_id)
        if job.labels.get(ARRAY_LABEL) == number
        and job.user == own
        and job.submitted >= array.submitted - _CLOCKS  # of another array with the same number
    }


def _row(array: ArrayFile, element: ArrayElement, job: JobStatus | None) -> ElementRow:
    model_dir = element.model_dir and str(Path(array.working_dir) / element.model_dir)
    has_run = job is not None and job.state != RecordState.PENDING
    result = result_of(Path(model_dir)) if model_dir and has_run else RunResult()
    return ElementRow(
        element.index,
        None if job is None else job.job_id,
        element.values,
        _state_without_job(element) if job is None else job.state,
        element.exit_code,
        result.step,
        result.loss,
        result.samples_per_sec,
        model_dir,
        "" if job is None else job.why.partition("\n")[0],
    )


def _state_without_job(element: ArrayElement) -> RecordState:
    if element.exit_code is None:
        return RecordState.PENDING
    is_cancelled = element.exit_code in _CANCELLED
    return RecordState.CANCELLED if is_cancelled else RecordState.FAILED
