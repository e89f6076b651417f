"""Ending a job from outside: its launcher is asked, as by Ctrl-C, and its tasks end in order."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from time import monotonic, sleep

from csrun.base.errors import CsrunError, UsageError
from csrun.jobs import register
from csrun.jobs.launcher import open_process
from csrun.jobs.record import JobRecord

WAIT_S = 30.0  # several times the grace period of the tasks
_POLL_S = 0.05


def cancel(site_name: str, job_id: int) -> JobRecord:
    """Ask a job's launcher to end it, and wait until it has; the record of its end.

    Raises: UsageError for an unknown or ended job, or someone else's; CsrunError when the launcher
    cannot be asked, or the job does not end
    """
    record = register.read(site_name, job_id)
    _require_ours(record)
    with _launcher_of(record) as process:
        if process is not None:
            _ask(process)
    deadline_s = monotonic() + WAIT_S
    while record.is_active and monotonic() < deadline_s:
        sleep(_POLL_S)
        record = register.read(site_name, job_id)
    if record.is_active:
        logs = f"; logs: {record.logs}" if record.logs else ""
        raise CsrunError(
            f"job {job_id}: has not ended {WAIT_S:.0f} s after its launcher was asked (process"
            f" {record.launcher.pid}); to ask again kills its tasks{logs}"
        )
    return record


def _ask(process: int) -> None:
    with suppress(ProcessLookupError):  # it has ended just now
        signal.pidfd_send_signal(process, signal.SIGTERM)
        signal.pidfd_send_signal(process, signal.SIGCONT)  # one stopped by Ctrl-Z hears it now


def _require_ours(record: JobRecord) -> None:
    if not record.is_active:
        when = f" at {record.ended.astimezone():%Y-%m-%d %H:%M:%S}" if record.ended else ""
        raise UsageError(f"job {record.job_id} has ended{when} already: {record.state}")
    if record.uid != os.getuid():
        raise UsageError(f"job {record.job_id} is {record.user}'s: only its owner can cancel it")
    here = socket.gethostname()
    if record.launcher.host != here:
        raise CsrunError(
            f"job {record.job_id} was launched on {record.launcher.host}, this is {here}: cancel"
            " it there"
        )


@contextmanager
def _launcher_of(record: JobRecord) -> Iterator[int | None]:
    """The launcher's process, by a descriptor that never means another; None when it is gone."""
    process = open_process(record.launcher)
    try:
        yield process
    finally:
        if process is not None:
            os.close(process)
