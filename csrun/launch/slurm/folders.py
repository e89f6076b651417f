"""The folders of a cluster's jobs: on a file system that all nodes share, for their owner alone.

A job's folder is made before Slurm has given the job its number, and named by it later, by a link.
"""

import os
import secrets
import shutil
from contextlib import suppress
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.context.job import LIVE_LOCK
from csrun.jobs.folder import KEPT_JOBS, JobFolder
from csrun.system import FileLock, lock, try_lock

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
            f"{jobs_dir}: no job's folder can be made there: {error.strerror}; set jobs_dir in the"
            " site file to a folder that all nodes share and you may write"
        ) from error
    return JobFolder(path), live


def name_by_id(folder: JobFolder, job_id: int) -> JobFolder:
    """Give a job's folder the name of its number; the folder by that name."""
    link = folder.path.with_name(str(job_id))
    link.unlink(missing_ok=True)  # a cluster that counts from the start again
    link.symlink_to(folder.path.name)
    return JobFolder(link)


def prune(jobs_dir: Path) -> None:
    """Remove all folders of dead jobs but the newest; dead jobs' secrets always."""
    paths = sorted(jobs_dir.glob(f"{_PREFIX}*"), key=_made_ns, reverse=True)
    for index, path in enumerate(paths):
        with suppress(OSError):
            _clear_if_dead(path, remove=index >= KEPT_JOBS)
    for link in jobs_dir.iterdir():
        if link.is_symlink() and not link.exists():
            link.unlink(missing_ok=True)


def _made_ns(path: Path) -> int:
    return path.stat().st_mtime_ns


def _clear_if_dead(path: Path, remove: bool) -> None:
    dead = try_lock(path / LIVE_LOCK, "")
    if dead is None:
        return
    with dead:
        if remove:
            shutil.rmtree(path)
        else:
            JobFolder(path).clear()
