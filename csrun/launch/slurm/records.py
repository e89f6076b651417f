"""csrun's records of a cluster's jobs: their outcomes, and their CS systems with times.

Slurm forgets a job after minutes (`MinJobAge`) and only stores an exit code. A record is written
when Slurm queues the job, when its tasks start and when it ends. It is next to its account's job
folders, and outlives them.
"""

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from csrun.base import stored
from csrun.base.errors import CsrunError
from csrun.base.files import account_name, make_private
from csrun.context import JobFile, every_jobs_dir, jobs_dir_of
from csrun.context.job import LeaseRecord, now
from csrun.jobs import job_labels
from csrun.jobs.cancel import this_process
from csrun.jobs.folder import JobFolder
from csrun.jobs.record import JobRecord, Outcome, RecordState, ended, moved, outcome_of
from csrun.jobs.register import KEPT_RECORDS, LOST_CAUSE
from csrun.jobs.request import JobRequest
from csrun.launch.slurm import mailbox
from csrun.site import Site

RECORDS_DIR = "records"
NEVER_STARTED = "left Slurm's queue before its tasks started"


@dataclass
class Recorded:
    """Record of the job of this process."""

    path: Path
    record: JobRecord

    def end(self, outcome: Outcome) -> None:
        """Record that the job has ended and released its systems."""
        systems = tuple(msgspec.structs.replace(use, released=now()) for use in self.record.systems)
        self.record = ended(self.record, outcome, systems)
        self.write()

    def restarted(self, cause: str) -> None:
        """Record that the tasks restart after a failure."""
        restarts = (*self.record.restarts, cause)
        self.record = msgspec.structs.replace(self.record, restarts=restarts)
        self.write()

    def write(self) -> None:
        """Write the file; on a full disk it is lost and the job continues."""
        try:
            make_private(self.path.parent)
            stored.write(self.path, self.record, durable=False)
        except OSError as error:
            line = f"csrun: job {self.record.job_id}: record cannot be written: {error.strerror}"
            print(line, file=sys.stderr, flush=True)


@contextmanager
def recorded(
    site: Site, request: JobRequest, job: JobFile, folder: JobFolder, account: str
) -> Iterator[Recorded]:
    """Context manager of a running job's record; an exception ends it."""
    own = Recorded(_path(site, job.job_id), _begun(request, job, folder, account))
    own.write()
    _prune(own.path.parent)
    try:
        yield own
    except BaseException as error:
        if own.record.is_active:
            own.end(outcome_of(error))
        raise


def record_pending(site: Site, request: JobRequest, job_id: int, nodes: int, tasks: int) -> None:
    """Record a job of this folder that Slurm has queued, unless its tasks have started since."""
    path, draft = _path(site, job_id), _draft(request, job_id, nodes, tasks, str(Path.cwd()))
    if not path.exists():
        Recorded(path, draft).write()


def of_job(site: Site, job_id: int) -> JobRecord | None:
    """Return this account's record of a job; None if it is missing or damaged."""
    with suppress(OSError, CsrunError):
        path = _path(site, job_id)
        return _with_labels(stored.read(path, JobRecord, "the record", "remove it"), path)
    return None


def label(
    site: Site, job_id: int, known: job_labels.Labels, changes: Iterable[str]
) -> job_labels.Labels:
    """Change labels of this account's job; return all of its labels.

    Raises: as `job_labels.changed`; CsrunError if the folder is not writable
    """
    found, path = job_labels.changed(known, changes), _path(site, job_id)
    try:
        make_private(path.parent)
        job_labels.store(path, found)
    except OSError as error:
        raise CsrunError(f"{path.parent}: cannot be written: {error.strerror}") from error
    return found


def labels_of(site: Site, job_id: int, since: datetime) -> job_labels.Labels:
    """Return labels of this account's job; labels older than the job belong to another job of its
    number.
    """
    record, path = of_job(site, job_id), _path(site, job_id)
    with suppress(OSError):
        if path.with_suffix(job_labels.SUFFIX).stat().st_mtime >= since.timestamp():
            return job_labels.stored_labels(path) or {}
    return {} if record is None or record.submitted < since else record.labels


def _path(site: Site, job_id: int) -> Path:
    return jobs_dir_of(site.name, site.jobs_dir, site.shared) / RECORDS_DIR / f"{job_id}.json"


def _with_labels(record: JobRecord, path: Path) -> JobRecord:
    later = job_labels.stored_labels(path)
    return record if later is None else msgspec.structs.replace(record, labels=later)


def read_all(site: Site) -> list[JobRecord]:
    """Return the records of all readable accounts, newest job last."""
    found = []
    for folder in every_jobs_dir(site.name, site.jobs_dir, site.shared):
        for path in folder.glob(f"{RECORDS_DIR}/*.json"):
            with suppress(FileNotFoundError, PermissionError):
                found += _read(path)
    return sorted(found, key=lambda record: (record.submitted, record.job_id))


def settled(record: JobRecord) -> JobRecord:
    """Return the record of a job that has ended: if no end was recorded, it is LOST at its
    launcher's last message, or CANCELLED if its tasks never started.
    """
    if not record.is_active:
        return record
    if record.state is RecordState.PENDING:
        when, cause = record.submitted, NEVER_STARTED
        return moved(record, RecordState.CANCELLED, ended=when, cause=cause)
    reported = _last_report(record)
    uses = tuple(msgspec.structs.replace(use, released=reported) for use in record.systems)
    return moved(record, RecordState.LOST, ended=reported, cause=LOST_CAUSE, systems=uses)


def _last_report(record: JobRecord) -> datetime:
    """Return the time of the launcher's last heartbeat, or else of the job's start."""
    begun = record.started or record.submitted
    if record.logs is None:
        return begun
    try:
        heard_s = mailbox.launcher_mailbox(Path(record.logs).parent).stat().st_mtime
    except OSError:
        return begun
    return max(begun, datetime.fromtimestamp(heard_s, UTC))


def _read(path: Path) -> list[JobRecord]:
    try:
        found = stored.read_owned(path, JobRecord, "the record")
    except CsrunError as error:
        print(f"warning: {error}", file=sys.stderr)
        return []
    record = msgspec.structs.replace(found.value, uid=found.uid, user=account_name(found.uid))
    return [_with_labels(record, path)]


def _draft(request: JobRequest, job_id: int, nodes: int, tasks: int, working_dir: str) -> JobRecord:
    """Return the record of a pending job."""
    return JobRecord(
        job_id=job_id,
        name=request.name,
        user=account_name(os.getuid()),
        uid=os.getuid(),
        command=request.command,
        working_dir=working_dir,
        nodes=nodes,
        tasks=tasks,
        launcher=this_process(),
        submitted=now(),
        time_limit_s=request.options.time_limit_s,
        output=request.options.output,
        labels=dict(request.options.labels),
    )


def _begun(request: JobRequest, job: JobFile, folder: JobFolder, account: str) -> JobRecord:
    draft = _draft(request, job.job_id, job.nodes, len(job.tasks), job.working_dir)
    began = draft.submitted
    return msgspec.structs.replace(
        moved(draft, RecordState.RUNNING, started=began),
        node_names=tuple(dict(sorted((task.node_id, task.node) for task in job.tasks)).values()),
        logs=str(folder.path / "logs"),
        systems=tuple(LeaseRecord(name, began, began) for name in job.systems),
        account=account,
    )


def _prune(records: Path) -> None:
    """Delete the oldest records beyond the retention."""
    paths = sorted(records.glob("*.json"), key=lambda path: path.stat().st_mtime_ns)
    for path in paths[:-KEPT_RECORDS]:
        path.unlink(missing_ok=True)
        path.with_suffix(job_labels.SUFFIX).unlink(missing_ok=True)
