"""Cancelling a job: its launcher is signalled, as by Ctrl-C, and ends the tasks in order.

The launcher is known by its number and by when it began: no later process has both.
"""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic, sleep

from csrun.base.errors import CsrunError, UsageError
from csrun.base.files import account_name
from csrun.jobs import register
from csrun.jobs.folder import JobFolder, jobs_dir
from csrun.jobs.record import JobRecord, Launcher
from csrun.site import Site

_START_FIELD = 19  # of /proc/PID/stat after the command's name, which may hold anything; proc(5)


def this_process() -> Launcher:
    """This process, as the launcher of a job."""
    return Launcher(socket.gethostname(), os.getpid(), _start_of(os.getpid()))


def open_process(launcher: Launcher) -> int | None:
    """A descriptor of a launcher on this machine (see pidfd_open(2)); None when it is gone."""
    try:
        # First the descriptor, then the look: no process that comes later can get the signal.
        fd = os.pidfd_open(launcher.pid)
        if _start_of(launcher.pid) == launcher.start:
            return fd
    except (ProcessLookupError, FileNotFoundError):
        return None
    os.close(fd)
    return None


def _start_of(pid: int) -> int:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    return int(after_name.split()[_START_FIELD])


SPARE_S = 15.0  # after the grace of the tasks: to be killed, and for the record to be written
_POLL_S = 0.05


def cancel(site: Site, job_id: int, grace_s: float, command: str) -> JobRecord:
    """Ask a job's launcher to end it, and wait until it has; the record of its end.

    Its tasks have `grace_s` to end in order. command: that the job is cancelled with.

    Raises: UsageError for an unknown or ended job, or someone else's; CsrunError when the launcher
    cannot be asked, or the job does not end
    """
    record = register.read(site, job_id)
    _require_ours(record)
    with _launcher_of(record) as process:
        if process is not None:
            JobFolder(jobs_dir(site) / str(job_id)).note_cancel(command)
            _ask(process)
    wait_s = grace_s + SPARE_S
    deadline_s = monotonic() + wait_s
    while record.is_active and monotonic() < deadline_s:
        sleep(_POLL_S)
        record = register.read(site, job_id)
    if record.is_active:
        logs = f"; logs: {record.logs}" if record.logs else ""
        raise CsrunError(
            f"job {job_id}: still running {wait_s:.0f} s after its launcher (process"
            f" {record.launcher.pid}) was signalled; cancel it again to kill its tasks{logs}"
        )
    return record


def _ask(process: int) -> None:
    with suppress(ProcessLookupError):  # it has ended just now
        signal.pidfd_send_signal(process, signal.SIGTERM)
        signal.pidfd_send_signal(process, signal.SIGCONT)  # wakes one stopped by Ctrl-Z


def _require_ours(record: JobRecord) -> None:
    if not record.is_active:
        when = f" at {record.ended.astimezone():%Y-%m-%d %H:%M:%S}" if record.ended else ""
        raise UsageError(f"job {record.job_id} already ended{when}: {record.state}")
    if record.uid != os.getuid():
        owner = account_name(record.uid)
        raise UsageError(f"job {record.job_id} is {owner}'s: only its owner can cancel it")
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
