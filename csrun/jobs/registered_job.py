"""A job in its site's register: its id, its folder, its lock and its record, until its end."""

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from csrun.base import stored
from csrun.base.errors import UsageError
from csrun.base.files import account_name, make_private
from csrun.context import account_state_dir, site_state_dir, state_dir
from csrun.context.job import now, read_leases
from csrun.jobs import register, retention
from csrun.jobs.cancel import this_process
from csrun.jobs.folder import (
    JobFolder,
    create,
    job_ids,
    jobs_dir,
    missing_disk_space,
    newest_first,
    publish_job,
    telemetry_dir,
)
from csrun.jobs.record import JobRecord, Outcome, RecordState, ended, moved, outcome_of
from csrun.jobs.request import JobOptions, name_of
from csrun.jobs.signals import DeferredSignals, EndedBySignalError
from csrun.site import Site
from csrun.system import FileLock, lock, make_site_folders


class JobCounter(msgspec.Struct, frozen=True):
    """`last_job`: the last number that was assigned."""

    last_job: int


@dataclass
class RegisteredJob:
    """A job of this process, which alone writes its record.

    live: lock held in the job's folder.
    shown: lock held on the board of a shared site, for other accounts.
    """

    site: Site
    folder: JobFolder
    live: FileLock
    record: JobRecord
    shown: FileLock | None = None

    @property
    def job_id(self) -> int:
        return self.record.job_id

    @property
    def locks(self) -> tuple[FileLock, ...]:
        """Locks that mark the job as alive, held by all processes that run it."""
        return (self.live,) if self.shown is None else (self.live, self.shown)

    @property
    def telemetry_dir(self) -> Path:
        """Folder with the progress of the job."""
        return telemetry_dir(self.site, self.job_id, self.record.uid)

    def waits_for(self, reason: str) -> None:
        """Record what the job waits for."""
        self._keep(msgspec.structs.replace(self.record, reason=reason), durable=False)

    def start(self, node_names: tuple[str, ...]) -> None:
        self._keep(moved(self.record, RecordState.RUNNING, node_names=node_names, started=now()))

    def restarted(self, cause: str) -> None:
        """Record that the job's tasks restart after this failure."""
        causes = (*self.record.restarts, cause)
        self._keep(msgspec.structs.replace(self.record, restarts=causes))

    def end(self, outcome: Outcome) -> None:
        self._keep(ended(self.record, outcome, read_leases(self.telemetry_dir)))

    def _keep(self, record: JobRecord, *, durable: bool = True) -> None:
        # Writing takes a moment; a signal during it would leave the old state.
        with DeferredSignals():
            self.record = record
            try:
                register.write(self.site, record, durable=durable)
            except OSError as error:  # the job itself reports a full disk if it is affected
                line = f"csrun: job {self.job_id}: record cannot be written: {error.strerror}"
                print(line, file=sys.stderr, flush=True)


@contextmanager
def registered(
    site: Site,
    command: tuple[str, ...],
    options: JobOptions,
    nodes: int,
    tasks: int,
    *,
    keeps_logs: bool = True,
) -> Iterator[RegisteredJob]:
    """Context manager of a job while it waits and runs; an exception ends the job.

    The folder of a job without logs is deleted at the end.

    Raises: UsageError if csrun's state cannot be written
    """
    draft = _draft(command, options, nodes, tasks)
    with refusal_of_unwritable_state(site):
        make_folders(site)
        register = _register_lock(site)
    with DeferredSignals() as signals:
        with refusal_of_unwritable_state(site), register:
            job = _register(site, draft, keeps_logs)
        with ExitStack() as locks:
            locks.callback(_tidy_after, site)  # last, since our own folder then is a dead job's
            for held in job.locks:
                locks.enter_context(held)
            try:
                with _cancel_named(job.folder), signals.deliver_signals():
                    yield job
            except BaseException as error:
                if job.record.is_active:
                    job.end(outcome_of(error))
                raise
            finally:
                _leave(job)


@contextmanager
def _cancel_named(folder: JobFolder) -> Iterator[None]:
    """An EndedBySignalError says who has cancelled the job, if it was."""
    try:
        yield
    except EndedBySignalError as error:
        raise EndedBySignalError(error.signum, folder.reason_of(error.signum)) from None


def make_folders(site: Site) -> None:
    """Create the folders of csrun's state, with their permissions.

    Raises: OSError; UsageError if a private folder belongs to another account
    """
    if not site.shared:
        for folder in (state_dir(), site_state_dir(site.name)):
            make_private(folder)
    make_site_folders(site)
    make_private(account_state_dir(site.name, site.shared))


def _draft(command: tuple[str, ...], options: JobOptions, nodes: int, tasks: int) -> JobRecord:
    """Return the record of a job without a number."""
    return JobRecord(
        job_id=0,
        name=options.job_name or name_of(command),
        user=account_name(os.getuid()),
        uid=os.getuid(),
        command=command,
        working_dir=str(Path.cwd()),
        nodes=nodes,
        tasks=tasks,
        launcher=this_process(),
        submitted=now(),
        time_limit_s=options.time_limit_s,
        output=options.output,
        labels=dict(options.labels),
    )


@contextmanager
def refusal_of_unwritable_state(site: Site) -> Iterator[None]:
    """Convert an OSError to a UsageError that names the state folder, or the file in it."""
    try:
        yield
    except OSError as error:
        folder = site_state_dir(site.name)
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and (lack := missing_disk_space(folder, 1)):
            raise UsageError(lack) from error
        inside = _inside(folder, error.filename)
        place = inside or f"state folder {folder}"
        remedy = "fix its permissions or remove it, or " if inside else ""
        raise UsageError(
            f"{place}: cannot be written: {error.strerror}; {remedy}set CSRUN_STATE_DIR to a "
            "writable folder"
        ) from error


def _inside(folder: Path, name: object) -> Path | None:
    """Return the path that an error names, if it is in the folder."""
    path = Path(name) if isinstance(name, str) else folder
    return path if folder in path.parents else None


def _register(site: Site, draft: JobRecord, keeps_logs: bool) -> RegisteredJob:
    """Assign an id, create and lock the folder, and write the record, under the register's lock.

    The lock prevents that another process takes the new folder for a dead job's before it is
    locked. If the registration fails, everything is deleted again.
    """
    folders = jobs_dir(site)
    job_id = _next_number(site)
    holder = f"job {job_id} (process {os.getpid()})"
    with ExitStack() as undo:
        folder, live = create(folders, job_id, holder)
        undo.callback(shutil.rmtree, folder.path, ignore_errors=True)
        undo.callback(live.release)
        undo.callback(register.remove, site, job_id)
        shown = None
        if site.shared:
            shown = publish_job(site, job_id, holder)
            undo.callback(shown.release)
        logs = str(folder.path / "logs") if keeps_logs else None
        record = msgspec.structs.replace(draft, job_id=job_id, logs=logs)
        register.write(site, record)
        undo.pop_all()
    _tidy(site)
    return RegisteredJob(site, folder, live, record, shown)


def _leave(job: RegisteredJob) -> None:
    if job.record.logs:
        job.folder.clear()
    else:
        shutil.rmtree(job.folder.path, ignore_errors=True)


def _tidy(site: Site) -> None:
    """Delete folders and records beyond the retention; the register's lock is held."""
    folders = newest_first(jobs_dir(site))
    retention.prune(folders, site.jobs, lambda path: register.settle(site, int(path.name)))
    register.prune(site)


def _tidy_after(site: Site) -> None:
    with suppress(OSError, UsageError), _register_lock(site):
        _tidy(site)


def _register_lock(site: Site) -> FileLock:
    return lock(_counter(site).with_suffix(".lock"), f"process {os.getpid()}", site.shared)


def _counter(site: Site) -> Path:
    """Return the file of the last number, which all accounts of a shared site use."""
    top = site_state_dir(site.name)
    return (top / "nodes" if site.shared else top) / "last_job"


def _next_number(site: Site) -> int:
    """Return a job id that no job of the site has had."""
    counter = _counter(site)
    # The counter may be lost or damaged; folders and records show used numbers, too.
    known = (*job_ids(jobs_dir(site)), *register.record_ids(site))
    number = 1 + max(_number_in(counter), *known, 0)
    mode = 0o660 if site.shared else None
    stored.write(counter, JobCounter(number), durable=False, mode=mode)
    return number


def _number_in(counter: Path) -> int:
    """Return the last number; 0 if the file is lost, or damaged by a crash of the machine."""
    with suppress(FileNotFoundError, stored.DamagedError):
        return stored.read(counter, JobCounter, "the number of the last job").last_job
    return 0
