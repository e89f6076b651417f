"""The folder of a job: plan, logs, reports and telemetry of its tasks."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.base.files import (
    SHOWN,
    account_name,
    make_for_group,
    make_private,
    read_start,
    require_own,
)
from csrun.context import JobFile, TaskReport, jobs_dir_of, rerun, site_state_dir, state_dir
from csrun.context.deferred_termination import REASON_BYTES, describe_signal
from csrun.context.job import (
    ENDED_DIR,
    LIVE_LOCK,
    REASON_FILE,
    RUNS_DIR,
    SECRET_BYTES,
    SECRET_FILE,
    TELEMETRY_FILE,
    ended_file,
)
from csrun.context.launcher_link import REPORT_DIR
from csrun.site import Site
from csrun.system import FileLock, lock

CANCEL_FILE = "cancelled_by"
COMPARED = "ended by csrun compare, which has its values"
LAUNCHER_LOG = "launcher"  # log of a detached launcher, or of one whose standard error is closed
TASK_BYTES = 16 << 10  # its log and its report, of a task that says little: four blocks of a disk


@dataclass(frozen=True)
class JobFolder:
    """Paths in a job folder, and access to its files."""

    path: Path

    @property
    def logs(self) -> Path:
        """Folder of the tasks' logs."""
        return self.path / "logs"

    def log(self, task: str) -> Path:
        """The log of a task, e.g. `rank-00003` or `wafer-cs2-02`."""
        return self.logs / f"{task}.log"

    def report(self, report_name: str) -> TaskReport | None:
        """Return a task's failure report, if it has written one."""
        return TaskReport.read(self.path, report_name)

    def prepare(self, job: JobFile) -> None:
        """Fill the folder with everything that a task needs to start."""
        self.create_subfolders()
        job.write(self.path)

    def create_subfolders(self) -> None:
        """Create the subfolders of a job, and its secret."""
        for name in ("logs", REPORT_DIR, ENDED_DIR):
            (self.path / name).mkdir(0o700, exist_ok=True)
        self._write_secret()

    def renew(self) -> None:
        """Delete the files that tasks have written for each other and for the launcher, before a
        restart.

        Raises: OSError, for example on a full disk
        """
        for name in (REPORT_DIR, ENDED_DIR, RUNS_DIR):
            shutil.rmtree(self.path / name, ignore_errors=True)
        with suppress(OSError):
            (self.path / TELEMETRY_FILE).unlink(missing_ok=True)
        for name in (REPORT_DIR, ENDED_DIR):
            (self.path / name).mkdir(0o700, exist_ok=True)

    def mark_ended(self, rank: int) -> None:
        """Notify a task's peers that it has ended without error; lost on a full disk."""
        with suppress(OSError):
            ended_file(self.path, rank).touch()

    def write_reason_to_end(self, reason: str) -> None:
        """Write the reason for a signal to the tasks; on a full disk they only get the signal."""
        with suppress(OSError):
            (self.path / REASON_FILE).write_text(reason)

    @contextmanager
    def recording_cancellation(self, command: str) -> Iterator[None]:
        """Context manager for cancelling the job: it first notes the user and the command.

        If cancelling fails, the note is removed: the job may end later for another reason. If the
        disk is full there is no note.
        """
        path, earlier = self.path / CANCEL_FILE, self.cancellation
        with suppress(OSError):
            path.write_text(f"cancelled by {account_name(os.getuid())} ({command})")
        try:
            yield
        except BaseException:
            with suppress(OSError):
                if earlier:
                    path.write_text(earlier)
                else:
                    path.unlink(missing_ok=True)
            raise

    @property
    def cancellation(self) -> str:
        """User who has cancelled the job, and the command; empty if it was not cancelled."""
        return read_start(self.path / CANCEL_FILE, REASON_BYTES)

    def reason_of(self, signum: int, stopped_by: str = "") -> str:
        """Return the reason of a signal to the launcher: for a cancel, who cancelled the job.

        stopped_by: what the scheduler says, if the signal is its own
        """
        noted = self.cancellation if signum == signal.SIGTERM else ""
        if signum == signal.SIGTERM and rerun() is not None:
            stopped_by = stopped_by or COMPARED
        return noted or stopped_by or describe_signal(signum)

    def clear(self) -> None:
        """Delete files that are secret or not needed after the job's end."""
        for path in (self.path / SECRET_FILE, *self.path.glob("link*.sock")):
            path.unlink(missing_ok=True)

    def _write_secret(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(self.path / SECRET_FILE, flags, 0o600), "wb") as file:
            file.write(os.urandom(SECRET_BYTES))


def missing_disk_space(folder: Path, tasks: int) -> str | None:
    """Return a message if the disk has no space for a job's files, else None.

    A task that cannot write its log or its report cannot report that itself.
    """
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    disk = os.statvfs(there)
    free, needed = disk.f_bavail * disk.f_frsize, tasks * TASK_BYTES
    if free >= needed:
        return None
    remedy = "set jobs_dir in the site file"
    if folder.absolute().is_relative_to(state_dir().absolute()):
        remedy = "set CSRUN_STATE_DIR"
    files = f"the files of {tasks} task{'s' * (tasks > 1)}"
    return (
        f"{folder}: disk full: {files} need about {needed:,} bytes, {free:,} are free; free some"
        f" space, or {remedy} to a folder on a larger disk"
    )


def require_disk_space(folder: Path, tasks: int) -> None:
    """Raises: UsageError if there is no space for the files of a job with this many tasks"""
    if lack := missing_disk_space(folder, tasks):
        raise UsageError(lack)


def jobs_dir(site: Site) -> Path:
    """Return the folder of this account's jobs on this machine."""
    return jobs_dir_of(site.name, shared=site.shared)


def published_jobs_dir(site: Site) -> Path:
    """Return the folder of a shared site in which its accounts see each other's jobs."""
    return site_state_dir(site.name) / "board"


def published_job_dir(site: Site, job_id: int, uid: int | None = None) -> Path:
    """Return the folder of a job's published files, by default of this account."""
    return published_jobs_dir(site) / str(os.getuid() if uid is None else uid) / str(job_id)


def telemetry_dir(site: Site, job_id: int, uid: int) -> Path:
    """Return the folder with a job's lock and telemetry."""
    return published_job_dir(site, job_id, uid) if site.shared else jobs_dir(site) / str(job_id)


def publish_job(site: Site, job_id: int, holder: str) -> FileLock:
    """Create a job's entry on the board, and hold the lock that marks it as alive.

    The lock is taken before others can open it, so that a reader cannot keep it from us.
    """
    folder = published_job_dir(site, job_id)
    make_for_group(folder.parent, SHOWN)
    require_own(folder.parent)
    make_for_group(folder, SHOWN)
    live = lock(folder / LIVE_LOCK, holder)
    os.fchmod(live.fd, 0o640)
    return live


def create(jobs_dir: Path, job_id: int, holder: str) -> tuple[JobFolder, FileLock]:
    """Create a job's folder, private to this account, and lock it as that of a living job.

    Raises: UsageError if `jobs_dir` belongs to another account
    """
    folder = JobFolder(jobs_dir / str(job_id))
    make_private(jobs_dir)
    folder.path.mkdir(0o700)
    try:
        return folder, lock(folder.path / LIVE_LOCK, holder)
    except BaseException:
        shutil.rmtree(folder.path, ignore_errors=True)
        raise


def job_ids(jobs_dir: Path) -> list[int]:
    """Return the jobs that have a folder, oldest first."""
    return sorted(int(path.name) for path in jobs_dir.glob("*") if path.name.isdecimal())


def newest_first(jobs_dir: Path) -> list[Path]:
    """Return the folders of jobs, by job number."""
    return [jobs_dir / str(job_id) for job_id in reversed(job_ids(jobs_dir))]
