"""The folder of a job: plan, logs, reports and telemetry of its tasks."""

import os
import shutil
import signal
from contextlib import suppress
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
from csrun.context import JobFile, TaskReport, jobs_dir_of, site_state_dir, state_dir
from csrun.context.ending import REASON_BYTES, describe_signal
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
from csrun.context.link import REPORT_DIR
from csrun.site import Site
from csrun.system import FileLock, lock

CANCEL_FILE = "cancelled_by"
LAUNCHER_LOG = "launcher"  # of one that has left its terminal, or whose standard error is closed
TASK_BYTES = 16 << 10  # its log and its report, of a task that says little: four blocks of a disk


@dataclass(frozen=True)
class JobFolder:
    """Paths in a job's folder, and what is read from them."""

    path: Path

    @property
    def logs(self) -> Path:
        """The folder of the tasks' logs."""
        return self.path / "logs"

    def log(self, task: str) -> Path:
        """The log of a task, e.g. `rank-00003` or `wafer-cs2-02`."""
        return self.logs / f"{task}.log"

    def report(self, report_name: str) -> TaskReport | None:
        """A task's report on its failure, if it has written one."""
        return TaskReport.read(self.path, report_name)

    def prepare(self, job: JobFile) -> None:
        """Fill the folder with all that a task needs at its start."""
        self.furnish()
        job.write(self.path)

    def furnish(self) -> None:
        """Make the folders of a job, and its secret."""
        for name in ("logs", REPORT_DIR, ENDED_DIR):
            (self.path / name).mkdir(0o700, exist_ok=True)
        self._write_secret()

    def renew(self) -> None:
        """Forget what the tasks have left for each other and for us, before they start again.

        Raises: OSError, on a full disk for example
        """
        for name in (REPORT_DIR, ENDED_DIR, RUNS_DIR):
            shutil.rmtree(self.path / name, ignore_errors=True)
        with suppress(OSError):
            (self.path / TELEMETRY_FILE).unlink(missing_ok=True)
        for name in (REPORT_DIR, ENDED_DIR):
            (self.path / name).mkdir(0o700, exist_ok=True)

    def mark_ended(self, rank: int) -> None:
        """Let a task's peers know that it has ended well; on a full disk they are not notified."""
        with suppress(OSError):
            ended_file(self.path, rank).touch()

    def write_reason_to_end(self, reason: str) -> None:
        """Let the tasks know why they are signalled; on a full disk they only know the signal."""
        with suppress(OSError):
            (self.path / REASON_FILE).write_text(reason)

    def note_cancel(self, command: str) -> None:
        """Say who cancels the job, before its launcher is signalled; a full disk says nothing."""
        with suppress(OSError):
            who = account_name(os.getuid())
            (self.path / CANCEL_FILE).write_text(f"cancelled by {who} ({command})")

    def reason_of(self, signum: int, stopped_by: str = "") -> str:
        """Event that a signal to the launcher stands for: who has cancelled the job, if it was.

        stopped_by: what the scheduler says, if the signal is its own
        """
        noted = ""
        if signum == signal.SIGTERM:
            noted = read_start(self.path / CANCEL_FILE, REASON_BYTES)
        return noted or stopped_by or describe_signal(signum)

    def clear(self) -> None:
        """Remove what is of no use, or secret, after the job's end."""
        for path in (self.path / SECRET_FILE, *self.path.glob("link*.sock")):
            path.unlink(missing_ok=True)

    def _write_secret(self) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with open(os.open(self.path / SECRET_FILE, flags, 0o600), "wb") as file:
            file.write(os.urandom(SECRET_BYTES))


def lack_of_room(folder: Path, tasks: int) -> str | None:
    """Message about a folder whose disk has no room for a job's files; None when it has.

    A task that cannot write its log or its report has no way to say so itself.
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


def require_room(folder: Path, tasks: int) -> None:
    """Raises: UsageError when the files of a job of so many tasks have no room."""
    if lack := lack_of_room(folder, tasks):
        raise UsageError(lack)


def jobs_dir(site: Site) -> Path:
    """The folder of this account's jobs that run on this machine."""
    return jobs_dir_of(site.name, shared=site.shared)


def board_dir(site: Site) -> Path:
    """The folder of a shared site where its accounts read of each other's jobs."""
    return site_state_dir(site.name) / "board"


def board_of(site: Site, job_id: int, uid: int | None = None) -> Path:
    """Folder of a job's published files; of this account unless another is named."""
    return board_dir(site) / str(os.getuid() if uid is None else uid) / str(job_id)


def telemetry_dir(site: Site, job_id: int, uid: int) -> Path:
    """The folder that says whether a job lives, and how far it is."""
    return board_of(site, job_id, uid) if site.shared else jobs_dir(site) / str(job_id)


def show_on_board(site: Site, job_id: int, holder: str) -> FileLock:
    """Make a job's place on the board, and hold the lock that says there that the job lives.

    It is held before the others may open it: whoever reads it cannot keep it from us.
    """
    folder = board_of(site, job_id)
    make_for_group(folder.parent, SHOWN)
    require_own(folder.parent)
    make_for_group(folder, SHOWN)
    live = lock(folder / LIVE_LOCK, holder)
    os.fchmod(live.fd, 0o640)
    return live


def create(jobs_dir: Path, job_id: int, holder: str) -> tuple[JobFolder, FileLock]:
    """Make a job's folder, for this account alone, and hold it as that of a living job.

    Raises: UsageError when `jobs_dir` is another account's
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
    """The jobs that have a folder, oldest first."""
    return sorted(int(path.name) for path in jobs_dir.glob("*") if path.name.isdecimal())


def newest_first(jobs_dir: Path) -> list[Path]:
    """The folders of jobs, by their numbers."""
    return [jobs_dir / str(job_id) for job_id in reversed(job_ids(jobs_dir))]
