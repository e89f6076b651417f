"""The scheduler of a cluster, by Slurm's own commands."""

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
from csrun.jobs.record import JobRecord
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
        """Lay a job out on the CPUs of the site's nodes."""
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
        """Run a job by srun, or hand it and its compile to sbatch; the exit code."""
        if request.foreground is not None:
            return submission.in_foreground(request, request.foreground, self._site)
        return submission.run(request, job_plan, self._site)

    def preview(self, request: JobRequest, job_plan: JobPlan) -> DryRun:
        """The plan, with srun's line or the script for sbatch."""
        line = submission.preview(request, job_plan, self._site)
        return describe(job_plan, self._site, line, sharing=None)

    def jobs(self, job_id: int | None = None, *, all_states: bool = False) -> list[squeue.SlurmJob]:
        """Jobs that Slurm still knows, whatever their state; with `all_states` also those of which
        only csrun has a record.
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
        """csrun's own, of all accounts that may be read; Slurm says which of them still run."""
        running = {job.job_id for job in squeue.jobs(self._site) if job.is_running}
        return [
            each if each.job_id in running else records.settled(each)
            for each in records.read_all(self._site)
        ]

    def folders(self) -> list[Path]:
        return folders.newest_first(_jobs_dir(self._site))

    def folder(self, job_id: int) -> Path:
        return _jobs_dir(self._site) / str(job_id)

    def check(self) -> list[CheckResult]:
        """By a short job on the idle nodes."""
        return [*site_check.check_cluster(self._site, _jobs_dir(self._site))]

    def nodes(self) -> list[squeue.SlurmNode]:
        return squeue.nodes(self._site)

    def systems(self) -> list[SystemStatus]:
        """By whom Slurm gave them to."""
        return squeue.systems(self._site)

    def cancel(self, job_id: int, command: str) -> str:
        """Ask Slurm, which does not say when it is over."""
        JobFolder(self.folder(job_id)).note_cancel(command)
        squeue.cancel(self._site, job_id)
        return "Slurm ends it"

    def label(self, job_id: int, changes: Sequence[str]) -> Mapping[str, str]:
        """Of a job that this account has, whether it runs or waits."""
        job = _with_record(_known(self._site, job_id), self._site)
        if job.user != account_name(os.getuid()):
            raise UsageError(f"job {job_id} is {job.user}'s: only its owner can label it")
        return records.label(self._site, job_id, job.labels, changes)

    def logs(
        self, job_id: int, role: Role | None, follow: bool, write: Callable[[bytes], None]
    ) -> None:
        """From the job's folder, which all nodes share."""
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
    """A job that Slurm knows, or csrun has a record of.

    Raises: UsageError when neither does, and as `squeue.jobs`
    """
    try:
        return squeue.job(site, job_id)
    except UsageError:
        record = records.of_job(site, job_id)
        if record is None:
            raise
        return of_record(record)


def of_record(record: JobRecord) -> squeue.SlurmJob:
    """A job that Slurm has forgotten, by csrun's record of it."""
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
    """The job with what csrun knows better: why it did not end well, and the number of its tasks.

    A record that is older than the job is that of another cluster's job of this number.
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
    """The job with the number of csrun's tasks, where this account has its plan, or a shared site's
    board shows it: Slurm's own tasks are one a node.
    """
    with suppress(OSError, CsrunError):
        folder = _jobs_dir(site) / str(job.job_id)
        return msgspec.structs.replace(job, tasks=len(JobFile.read(folder).tasks))
    if not site.shared:
        return job
    with suppress(OSError, CsrunError):
        return msgspec.structs.replace(job, tasks=register.read(site, job.job_id).tasks)
    return job


_ASK_S = 1.0  # squeue is a question to a controller that others ask, too


def show(
    site: Site, job_id: int, role: Role | None, follow: bool, write: Callable[[bytes], None]
) -> None:
    """Write the logs of a job's tasks, as those of a job on one machine.

    Raises: UsageError when there is no such job, or role in it, or its logs are gone, or someone
    else's; CsrunError when Slurm does not answer
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
    """Raises: UsageError for the folder of someone else's job."""
    if path.exists() and not os.access(path, os.R_OK | os.X_OK):
        raise UsageError(f"job {path.name}: only its owner {path.owner()} may read {path}")
    return (path / JOB_FILE).exists()
