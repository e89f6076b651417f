"""A job of a cluster on the board of a shared site, as the other accounts read it.

It is what a job on one machine has there, a record, a lock that says that it lives, telemetry and
uses of systems, for as long as it runs: how it ended, Slurm tells.
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
from csrun.jobs.folder import board_of, show_on_board
from csrun.jobs.record import JobRecord, RecordState
from csrun.jobs.registered_job import refusal_of_unwritable_state
from csrun.site import Site
from csrun.system import FileLock, lock, try_lock


@contextmanager
def publish(site: Site, name: str, job: JobFile) -> Iterator[JobFile]:
    """The job with its place on the board, where it is shown while this lasts; of a site that is
    not shared, the job as it is.

    Raises: UsageError when the board cannot be written
    """
    if not site.shared:
        yield job
        return
    place = board_of(site, job.job_id).absolute()
    with refusal_of_unwritable_state(site), _own_board(site):
        _prune(site)
        live = show_on_board(site, job.job_id, f"job {job.job_id} (process {os.getpid()})")
    with live:
        try:
            with refusal_of_unwritable_state(site):
                for left in (TELEMETRY_FILE, USES_FILE):  # by a job that was queued again
                    (place / left).unlink(missing_ok=True)
                register.show(site, _record(name, job))
            yield msgspec.structs.replace(job, board=str(place))
        finally:
            shutil.rmtree(place, ignore_errors=True)


def _own_board(site: Site) -> FileLock:
    """Held while a place is made or taken down, so that nobody takes one for a dead job's between
    its making and its locking.
    """
    own = account_state_dir(site.name, site.shared)
    return lock(own / "board.lock", f"process {os.getpid()}")


def _prune(site: Site) -> None:
    """Take down what launchers that were killed have left of this account."""
    for place in board_of(site, 0).parent.glob("*"):
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
