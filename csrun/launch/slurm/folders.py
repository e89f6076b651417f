"""The folders of a cluster's jobs: on a file system that all nodes share, for their owner alone.

A job's folder is made before Slurm has given the job its number, and named by it later, by a link.
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
    """Make a job's folder and hold it as that of a living job.

    Raises: UsageError when it cannot be made
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
    """Give a job's folder the name of its number; the folder by that name."""
    link = folder.path.with_name(str(job_id))
    link.unlink(missing_ok=True)  # a cluster that counts from the start again
    link.symlink_to(folder.path.name)
    return JobFolder(link)


def newest_first(jobs_dir: Path) -> list[Path]:
    """The folders of jobs, by when they were last changed."""
    return sorted(jobs_dir.glob(f"{_PREFIX}*"), key=_changed_ns, reverse=True)


def prune(jobs_dir: Path, rule: Retention) -> None:
    """Remove the folders of dead jobs that the site does not keep, and links that lead nowhere."""
    retention.prune(newest_first(jobs_dir), rule)
    for link in jobs_dir.iterdir():
        if link.is_symlink() and not link.exists():
            link.unlink(missing_ok=True)


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # removed just now
        return 0
