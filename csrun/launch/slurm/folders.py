"""Folders of a cluster's jobs, on a shared file system, private to their owner.

A job's folder is created before Slurm has assigned the job number; a link named by the number is
added later.
"""

import os
import secrets
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.context.job import LIVE_LOCK
from csrun.jobs import retention
from csrun.jobs.folder import JobFolder
from csrun.site import Retention
from csrun.system import FileLock, lock

_PREFIX = ".job-"


def create(jobs_dir: Path) -> tuple[JobFolder, FileLock]:
    """Create a job's folder and lock it as that of a living job.

    Raises: UsageError if it cannot be created
    """
    path = jobs_dir / f"{_PREFIX}{secrets.token_hex(6)}"
    try:
        path.mkdir(mode=0o700, parents=True)
        live = lock(path / LIVE_LOCK, f"process {os.getpid()}")
    except OSError as error:
        raise UsageError(
            f"{jobs_dir}: job folder cannot be created: {error.strerror}; set jobs_dir in the"
            " site file to a writable folder that all nodes share"
        ) from error
    return JobFolder(path), live


def name_by_id(folder: JobFolder, job_id: int) -> JobFolder:
    """Add the link named by the job number; return the folder's path through it."""
    link = folder.path.with_name(str(job_id))
    link.unlink(missing_ok=True)  # a cluster whose job numbers restarted
    link.symlink_to(folder.path.name)
    return JobFolder(link)


def newest_first(jobs_dir: Path) -> list[Path]:
    """Return the folders of jobs, by modification time."""
    return sorted(jobs_dir.glob(f"{_PREFIX}*"), key=_changed_ns, reverse=True)


def prune(jobs_dir: Path, rule: Retention) -> None:
    """Delete the folders of ended jobs beyond the site's retention, and dangling links."""
    retention.prune(newest_first(jobs_dir), rule)
    for link in jobs_dir.iterdir():
        if link.is_symlink() and not link.exists():
            link.unlink(missing_ok=True)


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # deleted meanwhile
        return 0
