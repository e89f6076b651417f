"""Job of a cluster on the board of a shared site, where other accounts can see it.

As on one machine, it has a record, a lock that is held while the job lives, telemetry and leases.
It exists while the job runs; Slurm reports the outcome.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import msgspec

from csrun.base.files import account_name
from csrun.context import JobFile, account_state_dir
from csrun.context.job import LIVE_LOCK, TELEMETRY_FILE, USES_FILE, now
from csrun.jobs import register
from csrun.jobs.cancel import this_process
from csrun.jobs.folder import publish_job, published_job_dir
from csrun.jobs.record import JobRecord, RecordState
from csrun.jobs.registered_job import refusal_of_unwritable_state
from csrun.site import Site
from csrun.system import FileLock, lock, try_lock


@contextmanager
def publish(site: Site, name: str, job: JobFile) -> Iterator[JobFile]:
    """Publish a job on the board while the context lasts; on a site that is not shared, do nothing.

    Raises: UsageError if the board cannot be written
    """
    if not site.shared:
        yield job
        return
    place = published_job_dir(site, job.job_id).absolute()
    with refusal_of_unwritable_state(site), _own_board(site):
        _prune(site)
        live = publish_job(site, job.job_id, f"job {job.job_id} (process {os.getpid()})")
    with live:
        try:
            with refusal_of_unwritable_state(site):
                for left in (TELEMETRY_FILE, USES_FILE):  # created by a job that was requeued
                    (place / left).unlink(missing_ok=True)
                register.show(site, _record(name, job))
            yield msgspec.structs.replace(job, board=str(place))
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _own_board(site: Site) -> FileLock:
    """Lock held while an entry is created or deleted.

    Without it another process could take an entry for a dead job's before it is locked.
    """
    own = account_state_dir(site.name, site.shared)
    return lock(own / "board.lock", f"process {os.getpid()}")


def _prune(site: Site) -> None:
    """Delete the entries of this account's killed launchers."""
    for place in published_job_dir(site, 0).parent.glob("*"):
        with suppress(OSError):
            if dead := try_lock(place / LIVE_LOCK, ""):
                with dead:
                    shutil.rmtree(place)


def _record(name: str, job: JobFile) -> JobRecord:
    by_id = dict(sorted((task.node_id, task.node) for task in job.tasks))
    return JobRecord(
        job_id=job.job_id,
        name=name,
        user=account_name(os.getuid()),
        uid=os.getuid(),
        command=(),
        working_dir="",
        nodes=job.nodes,
        tasks=len(job.tasks),
        launcher=this_process(),
        submitted=now(),
        state=RecordState.RUNNING,
        node_names=tuple(by_id.values()),
        started=now(),
    )
