"""Scheduler of a cluster, through Slurm's commands."""

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep

import msgspec

from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import account_name
from csrun.context import JobFile, Role, jobs_dir_of
from csrun.context.job import JOB_FILE, LIVE_LOCK
from csrun.jobs import register
from csrun.jobs.folder import JobFolder
from csrun.jobs.overview import SystemStatus
from csrun.jobs.record import JobRecord, RecordState
from csrun.jobs.request import JobRequest
from csrun.launch.backend import Backend
from csrun.launch.job_plan import JobPlan, plan
from csrun.launch.preflight.checks import CheckResult
from csrun.launch.preview import DryRun, describe
from csrun.launch.process import job_logs
from csrun.launch.slurm import (
    folders,
    options,
    records,
    sinfo,
    site_check,
    squeue,
    submission,
)
from csrun.launch.user_command import UserCommand
from csrun.site import Scheduler, Site
from csrun.system import is_held


class SlurmBackend(Backend):
    """The jobs of a cluster."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def plan(self, request: JobRequest) -> JobPlan:
        """Lay out a job on the CPUs of the site's nodes."""
        if request.detach:
            raise UsageError(
                f"--detach needs scheduler {Scheduler.LOCAL}, site {self._site.name} has"
                f" {Scheduler.SLURM}: use --sbatch"
            )
        options.of(request.options.slurm_options, self._site, batch=request.sbatch)
        if request.foreground is not None:
            sinfo.require_commands(self._site)
        _require_gres_of_each(UserCommand(request.command), self._site)
        return plan(request, self._site, tuple(range(self._site.nodes.cpus)), is_cluster=True)

    def run(self, request: JobRequest, job_plan: JobPlan) -> int:
        """Run a job by srun, or submit it and its compile by sbatch; return the exit code."""
        if request.foreground is not None:
            return submission.in_foreground(request, request.foreground, self._site)
        return submission.run(request, job_plan, self._site)

    def preview(self, request: JobRequest, job_plan: JobPlan) -> DryRun:
        """Return the plan, with srun's command or the script for sbatch."""
        line = submission.preview(request, job_plan, self._site)
        return describe(job_plan, self._site, line, sharing=None)

    def jobs(self, job_id: int | None = None, *, all_states: bool = False) -> list[squeue.SlurmJob]:
        """Return all jobs that Slurm still knows; with `all_states` also those that only csrun's
        records have.
        """
        if job_id is not None:
            return [_with_record(_known(self._site, job_id), self._site)]
        found = [_with_record(job, self._site) for job in squeue.jobs(self._site)]
        if not all_states:
            return found
        known = {job.job_id for job in found}
        forgotten = (each for each in records.read_all(self._site) if each.job_id not in known)
        return [*map(of_record, forgotten), *found]

    def records(self) -> list[JobRecord]:
        """Return csrun's records of all readable accounts; Slurm reports which jobs still run."""
        known = squeue.jobs(self._site)
        running = {job.job_id for job in known if job.is_running}
        waiting = {job.job_id for job in known if job.is_waiting}
        return [
            each
            if each.job_id in (waiting if each.state is RecordState.PENDING else running)
            else records.settled(each)
            for each in records.read_all(self._site)
        ]

    def folders(self) -> list[Path]:
        return folders.newest_first(_jobs_dir(self._site))

    def folder(self, job_id: int) -> Path:
        return _jobs_dir(self._site) / str(job_id)

    def check(self) -> list[CheckResult]:
        """Check the site by a short job on the idle nodes."""
        return [*site_check.check_cluster(self._site, _jobs_dir(self._site))]

    def nodes(self) -> list[squeue.SlurmNode]:
        return squeue.nodes(self._site)

    def systems(self) -> list[SystemStatus]:
        """Return the systems, with the jobs to which Slurm allocated them."""
        return squeue.systems(self._site)

    def cancel(self, job_id: int, command: str) -> str:
        """Ask Slurm, which does not say when it is over."""
        with JobFolder(self.folder(job_id)).recording_cancellation(command):
            squeue.cancel(self._site, job_id)
        return f"Slurm ends it; 'csctl wait {job_id}' waits until it has"

    def label(self, job_id: int, changes: Sequence[str]) -> Mapping[str, str]:
        """Change labels of this account's job, running or pending."""
        job = _with_record(_known(self._site, job_id), self._site)
        if job.user != account_name(os.getuid()):
            raise UsageError(f"job {job_id} is {job.user}'s: only its owner can label it")
        return records.label(self._site, job_id, job.labels, changes)

    def logs(
        self, job_id: int, role: Role | None, follow: bool, write: Callable[[bytes], None]
    ) -> None:
        """Print the logs in the job folder, which all nodes share."""
        show(self._site, job_id, role, follow, write)


def _require_gres_of_each(command: UserCommand, site: Site) -> None:
    systems = 1 if command.mode is None else command.num_systems
    if systems > 1 and site.gres is not None and not site.gres_names_systems:
        raise UsageError(
            f"--num_csx must be 1 on site {site.name}, got {systems}: gres {site.gres} does not"
            " name the CS system: add {system} to it, as in cs:{system}:1, and the names to"
            " slurm.conf"
        )


BACKEND = SlurmBackend


def _jobs_dir(site: Site) -> Path:
    return jobs_dir_of(site.name, site.jobs_dir, site.shared)


def _known(site: Site, job_id: int) -> squeue.SlurmJob:
    """Return a job that Slurm knows, or that csrun has a record of.

    Raises: UsageError for an unknown job, and as `squeue.jobs`
    """
    try:
        return squeue.job(site, job_id)
    except UsageError:
        record = records.of_job(site, job_id)
        if record is None:
            raise
        return of_record(record)


def of_record(record: JobRecord) -> squeue.SlurmJob:
    """Return a job that Slurm has forgotten, from csrun's record."""
    record = records.settled(record)
    return squeue.SlurmJob(
        job_id=record.job_id,
        name=record.name,
        user=record.user,
        state=record.state,
        reason=record.cause,
        nodes=record.nodes,
        tasks=record.tasks,
        node_names=record.node_names,
        systems=tuple(use.system for use in record.systems),
        submitted=record.submitted,
        started=record.started,
        ended=record.ended,
        account=record.account,
        type=record.type,
        labels=record.labels,
    )


def _with_record(job: squeue.SlurmJob, site: Site) -> squeue.SlurmJob:
    """Add the reason of a failure and the number of tasks from csrun's record to a job.

    A record older than the job belongs to another cluster's job of the same number.
    """
    own = account_name(os.getuid()) == job.user
    known = records.labels_of(site, job.job_id, job.submitted) if own else {}
    job = msgspec.structs.replace(job, labels=known)
    record = records.of_job(site, job.job_id)
    if record is None or record.submitted < job.submitted:
        return _counted(job, site)
    has_ended = job.ended is not None and record.cause
    reason = record.cause if has_ended else job.reason
    return msgspec.structs.replace(job, tasks=record.tasks, reason=reason, type=record.type)


def _counted(job: squeue.SlurmJob, site: Site) -> squeue.SlurmJob:
    """Add the number of csrun's tasks, from this account's plan or a shared site's board.

    Slurm only counts one task per node.
    """
    with suppress(OSError, CsrunError):
        folder = _jobs_dir(site) / str(job.job_id)
        return msgspec.structs.replace(job, tasks=len(JobFile.read(folder).tasks))
    if not site.shared:
        return job
    with suppress(OSError, CsrunError):
        return msgspec.structs.replace(job, tasks=register.read(site, job.job_id).tasks)
    return job


_ASK_S = 1.0  # squeue queries a controller that serves other users, too


def show(
    site: Site, job_id: int, role: Role | None, follow: bool, write: Callable[[bytes], None]
) -> None:
    """Print the logs of a job's tasks, as on one machine.

    Raises: UsageError for an unknown job or role, deleted logs, or another account's job;
    CsrunError if Slurm does not answer
    """
    folder = JobFolder(_jobs_dir(site) / str(job_id))
    while not _has_begun(folder.path):
        job = squeue.job(site, job_id)
        if not job.is_waiting and not job.is_running:
            raise UsageError(
                f"job {job_id} of {job.user} ({job.state}) has no logs in {folder.path.parent}:"
                f" only the newest {site.jobs.keep_count} ended jobs of csrun_wse keep theirs"
            )
        if not follow:
            reason = f"it waits for {job.reason}" if job.is_waiting else f"it is {job.state}"
            raise UsageError(f"job {job_id} has no logs yet: {reason}")
        sleep(_ASK_S)
    job_logs.show_folder(folder, role, lambda: follow and is_held(folder.path / LIVE_LOCK), write)


def _has_begun(path: Path) -> bool:
    """Raises: UsageError for a job folder of another account"""
    if path.exists() and not os.access(path, os.R_OK | os.X_OK):
        raise UsageError(f"job {path.name}: only its owner {path.owner()} may read {path}")
    return (path / JOB_FILE).exists()
