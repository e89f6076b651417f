"""Printing of the logs of a job's tasks, during the job or later."""

from collections.abc import Callable
from pathlib import Path
from time import sleep

from csrun.base.errors import UsageError
from csrun.context import JobFile, Role
from csrun.jobs import register
from csrun.jobs.folder import JobFolder, jobs_dir
from csrun.jobs.record import JobRecord
from csrun.launch.process.task_output import LogTail, log_name, rank_label, visible_ranks
from csrun.site import Site

_POLL_S = 0.1
_WAFER = "wafer-"


def show(
    site: Site,
    job_id: int,
    role: Role | None,
    follow: bool,
    write: Callable[[bytes], None],
) -> None:
    """Print the logs of a job's tasks: those of a role, else those that the job's launcher shows.

    Lines of several tasks are prefixed with the rank. `follow` continues until the job has ended.

    Raises: UsageError for an unknown job or role, or if the logs have been deleted
    """
    record = register.read(site, job_id)
    _require_logs(record, site.jobs.keep_count)
    while record.started is None:
        if not follow or not record.is_active:
            raise UsageError(f"job {job_id} has no logs yet: it waits for {record.reason}")
        sleep(_POLL_S)
        record = register.read(site, job_id)
        _require_logs(record, site.jobs.keep_count)
    folder = JobFolder(jobs_dir(site) / str(job_id))

    def goes_on() -> bool:
        record = register.read(site, job_id)
        _require_logs(record, site.jobs.keep_count)
        return follow and record.is_active

    show_folder(folder, role, goes_on, write)


def show_folder(
    folder: JobFolder,
    role: Role | None,
    goes_on: Callable[[], bool],
    write: Callable[[bytes], None],
) -> None:
    """Print the logs in the folder of a job that has begun, until it ends.

    Raises: UsageError if the job has no such role
    """
    job = JobFile.read(folder.path)
    tails: dict[str, LogTail] = {}
    while True:
        # Checked before the logs are read, so that the last read gets all of their text.
        is_last = not goes_on()
        for name, label in _logs(job, folder, role, is_last):
            tail = tails.setdefault(name, LogTail(folder.log(name), lambda: None, label))
            while data := tail.read():
                write(data)
            if is_last:
                write(tail.read(is_last=True))
        if is_last:
            return
        sleep(_POLL_S)


def _require_logs(record: JobRecord, kept: int) -> None:
    if record.logs is None:
        raise UsageError(
            f"job {record.job_id} wrote to its terminal: csrun_cpu keeps no logs"
            + (f"; see --output {record.output}" if record.output else "")
        )
    if record.is_active:
        return
    if record.started is None:
        raise UsageError(
            f"job {record.job_id} has no logs: it ended before it started: {record.cause}"
        )
    if not Path(record.logs).is_dir():
        raise UsageError(
            f"job {record.job_id} has no logs: only the newest {kept} ended jobs keep theirs"
        )


def _logs(
    job: JobFile, folder: JobFolder, role: Role | None, is_last: bool
) -> list[tuple[str, str]]:
    """Return the names of the logs to show, with their labels."""
    names = _wafers(folder) if role is Role.WAFER else _of_role(job, role)
    if not names and is_last:
        roles = ", ".join(dict.fromkeys(task.role for task in job.tasks))
        raise UsageError(f"job {job.job_id} has no {role}; it has: {roles}")
    return names


def _wafers(folder: JobFolder) -> list[tuple[str, str]]:
    names = sorted(path.stem for path in folder.log(_WAFER).parent.glob(f"{_WAFER}*.log"))
    return [(name, f"{name}: " if len(names) > 1 else "") for name in names]


def _of_role(job: JobFile, role: Role | None) -> list[tuple[str, str]]:
    chosen = [task.rank for task in job.tasks if task.role is role]
    ranks = visible_ranks(job) if role is None else chosen
    several = len(ranks) > 1
    return [(log_name(rank), rank_label(rank, len(job.tasks)) if several else "") for rank in ranks]
