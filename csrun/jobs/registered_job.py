"""A job in its site's register: its id, its folder, its lock and its record, up to its end."""

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import account_name, make_private, write_whole
from csrun.context import jobs_dir_of, site_state_dir, state_dir
from csrun.context.job import now, read_uses
from csrun.jobs import register
from csrun.jobs.cancel import this_process
from csrun.jobs.folder import JobFolder, create, job_ids, lack_of_room, prune
from csrun.jobs.record import JobRecord, Outcome, RecordState, ended, moved
from csrun.jobs.request import JobOptions, name_of
from csrun.jobs.signals import DeferredSignals, EndedBySignalError
from csrun.site import Site
from csrun.system import FileLock, lock

EXIT_INTERRUPTED = 130


@dataclass
class RegisteredJob:
    """A job of this process, which alone writes its record."""

    site_name: str
    folder: JobFolder
    live: FileLock
    record: JobRecord

    @property
    def job_id(self) -> int:
        return self.record.job_id

    def waits_for(self, reason: str) -> None:
        """The job has to wait, for this."""
        self._keep(msgspec.structs.replace(self.record, reason=reason), durable=False)

    def start(self, node_names: tuple[str, ...]) -> None:
        self._keep(moved(self.record, RecordState.RUNNING, node_names=node_names, started=now()))

    def restarted(self, cause: str) -> None:
        """The job's tasks start again after this failure."""
        causes = (*self.record.restarts, cause)
        self._keep(msgspec.structs.replace(self.record, restarts=causes))

    def end(self, outcome: Outcome) -> None:
        self._keep(ended(self.record, outcome, read_uses(self.folder.path)))

    def _keep(self, record: JobRecord, *, durable: bool = True) -> None:
        with DeferredSignals():
            self.record = record
            try:
                register.write(self.site_name, record, durable=durable)
            except OSError as error:  # of a full disk the job itself is to tell, if it is hurt
                say = f"csrun: job {self.job_id}: its record cannot be written: {error.strerror}"
                print(say, file=sys.stderr, flush=True)


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
    """A job while it waits and runs. An exception ends it, unless it has ended before.

    A job that keeps no logs has its folder only as long as it lives.

    Raises: UsageError when csrun's state cannot be written
    """
    draft = _draft(command, options, nodes, tasks)
    with refusal_of_unwritable_state(site):
        for folder in (state_dir(), site_state_dir(site.name)):
            make_private(folder)
        register = _register_lock(site)
    with DeferredSignals() as signals:
        with refusal_of_unwritable_state(site), register:
            job = _register(site, draft, keeps_logs)
        with job.live:
            try:
                with signals.let_through():
                    yield job
            except BaseException as error:
                if job.record.is_active:
                    job.end(_outcome_of(error))
                raise
            finally:
                _leave(job)


def _draft(command: tuple[str, ...], options: JobOptions, nodes: int, tasks: int) -> JobRecord:
    """The record of a job that has no number yet."""
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
    )


@contextmanager
def refusal_of_unwritable_state(site: Site) -> Iterator[None]:
    """An OSError in here becomes a UsageError that names the state folder."""
    try:
        yield
    except OSError as error:
        folder = site_state_dir(site.name)
        if error.errno in (errno.ENOSPC, errno.EDQUOT) and (lack := lack_of_room(folder, 1)):
            raise UsageError(lack) from error
        raise UsageError(
            f"state folder {folder}: cannot be written: {error.strerror}; set CSRUN_STATE_DIR to a "
            "folder that can"
        ) from error


def _register(site: Site, draft: JobRecord, keeps_logs: bool) -> RegisteredJob:
    """Draw an id, make and lock the folder, write the record: in one go, under the register's lock.

    So nobody takes a folder for a dead job's between its making and its locking.
    """
    jobs_dir = jobs_dir_of(site.name)
    job_id = _next_number(site.name)
    folder, live = create(jobs_dir, job_id, f"job {job_id} (process {os.getpid()})")
    logs = str(folder.path / "logs") if keeps_logs else None
    record = msgspec.structs.replace(draft, job_id=job_id, logs=logs)
    register.write(site.name, record)
    prune(jobs_dir, lambda dead: register.settle(site.name, dead))
    register.prune(site.name)
    return RegisteredJob(site.name, folder, live, record)


def _leave(job: RegisteredJob) -> None:
    if job.record.logs:
        job.folder.clear()
    else:
        shutil.rmtree(job.folder.path, ignore_errors=True)


def _register_lock(site: Site) -> FileLock:
    return lock(site_state_dir(site.name) / "last_job.lock", f"process {os.getpid()}")


def _next_number(site_name: str) -> int:
    """A job id that no job of the site has had."""
    counter = site_state_dir(site_name) / "last_job"
    known = (*job_ids(jobs_dir_of(site_name)), *register.record_ids(site_name))
    number = 1 + max(_number_in(counter), *known, 0)
    write_whole(counter, str(number).encode(), durable=False)
    return number


def _number_in(counter: Path) -> int:
    """The number last drawn; 0 when the file is lost, or damaged by a crash of the machine."""
    text = counter.read_bytes() if counter.exists() else b""
    return int(text) if text.isdigit() else 0


def _outcome_of(error: BaseException) -> Outcome:
    if isinstance(error, KeyboardInterrupt):
        return Outcome(RecordState.CANCELLED, EXIT_INTERRUPTED, "SIGINT")
    if isinstance(error, EndedBySignalError):
        return Outcome(RecordState.CANCELLED, error.exit_code, str(error))
    if isinstance(error, CsrunError):
        return Outcome(RecordState.FAILED, error.exit_code, str(error))
    return Outcome(RecordState.FAILED, 1, f"{type(error).__name__}: {error}")
