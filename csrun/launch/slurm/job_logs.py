"""What the tasks of a cluster's job have written, from the job's folder."""

import os
from collections.abc import Callable
from pathlib import Path
from time import sleep

from csrun.base.errors import UsageError
from csrun.context import Role, jobs_dir_of
from csrun.context.job import JOB_FILE, LIVE_LOCK
from csrun.jobs.folder import KEPT_JOBS, JobFolder
from csrun.launch.process import job_logs
from csrun.launch.slurm import squeue
from csrun.site import Site
from csrun.system import is_held

_ASK_S = 1.0  # squeue is a question to a controller that others ask, too


def show(
    site: Site, job_id: int, role: Role | None, follow: bool, write: Callable[[bytes], None]
) -> None:
    """Write the logs of a job's tasks, as those of a job on one machine.

    Raises: UsageError when there is no such job, or role in it, or its logs are gone, or someone
    else's; CsrunError when Slurm does not answer
    """
    folder = JobFolder(jobs_dir_of(site.name, site.jobs_dir) / str(job_id))
    while not _has_begun(folder.path):
        job = squeue.job(site, job_id)
        if not job.is_waiting and not job.is_running:
            raise UsageError(
                f"job {job_id} has no logs in {folder.path.parent}: of ended jobs of csrun_wse, the"
                f" newest {KEPT_JOBS} keep theirs; it is {job.user}'s, and {job.state}"
            )
        if not follow:
            reason = f"it waits for {job.reason}" if job.is_waiting else f"it is {job.state}"
            raise UsageError(f"job {job_id} has no logs yet: {reason}")
        sleep(_ASK_S)
    job_logs.show_folder(folder, role, lambda: follow and is_held(folder.path / LIVE_LOCK), write)


def _has_begun(path: Path) -> bool:
    """Raises: UsageError for the folder of someone else's job."""
    if path.exists() and not os.access(path, os.R_OK | os.X_OK):
        raise UsageError(f"job {path.name}: its folder {path} is {path.owner()}'s alone")
    return (path / JOB_FILE).exists()
