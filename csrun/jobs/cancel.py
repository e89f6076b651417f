"""Cancellation of a job: its launcher gets a signal, like Ctrl-C, and ends the tasks.

A launcher is identified by process id and start time, so that no later process is signalled.
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

# fields of /proc/PID/stat after the command's name, which may contain any character; proc(5)
_START_FIELD = 19


def this_process() -> Launcher:
    """Return this process as the launcher of a job."""
    return Launcher(socket.gethostname(), os.getpid(), _start_of(os.getpid()))


def open_process(launcher: Launcher) -> int | None:
    """Return a descriptor of a launcher on this machine (pidfd_open(2)); None if it has ended."""
    try:
        # First the descriptor, then the check: a later process with this id cannot get the signal.
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


SPARE_S = 15.0  # after the tasks' grace period: to kill them, and to write the record
_POLL_S = 0.05


def cancel(site: Site, job_id: int, grace_s: float, command: str) -> JobRecord:
    """Ask a job's launcher to end it, and wait until it has; the record of its end.

    Its tasks have `grace_s` to end in order. command: that the job is cancelled with.

    Raises: UsageError for an unknown or ended job, or another account's; CsrunError if the launcher
    cannot be signalled, or the job does not end
    """
    record = register.read(site, job_id)
    _require_ours(record)
    with _launcher_of(record) as process:
        if process is not None:
            with JobFolder(jobs_dir(site) / str(job_id)).recording_cancellation(command):
                _terminate(process)
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


def _terminate(process: int) -> None:
    with suppress(ProcessLookupError):  # it has ended meanwhile
        signal.pidfd_send_signal(process, signal.SIGTERM)
        signal.pidfd_send_signal(process, signal.SIGCONT)  # continues a launcher stopped by Ctrl-Z


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
    """Yield a descriptor of the launcher's process, which is safe against reuse of its id; None if
    it has ended.
    """
    process = open_process(record.launcher)
    try:
        yield process
    finally:
        if process is not None:
            os.close(process)
