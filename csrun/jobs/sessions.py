"""The sessions of a CS system: the job that holds it, and those that wait for it."""

import os
import pwd
import re
import signal
from enum import StrEnum
from pathlib import Path

import msgspec

from csrun.base.errors import CsrunError, UsageError
from csrun.context import Telemetry, jobs_dir_of
from csrun.context.job import LIVE_LOCK
from csrun.jobs.scancel import scancel
from csrun.site import Scheduler, Site, System
from csrun.system.lock import holder_of, is_held
from csrun.system.state_files import changing, lease_file, line_dir
from csrun.system.waiting_line import WaitingLine

_HOLDER = re.compile(r"job (?P<job>\d+) \(process (?P<process>\d+)\)")


class SessionState(StrEnum):
    """Whether a job has the system, or waits for it."""

    RUNNING = "RUNNING"
    WAITING = "WAITING"


class Session(msgspec.Struct, frozen=True):
    """One job that holds or wants a system; `process` is its chief's."""

    job: int
    state: SessionState
    process: int
    user: str | None


def holder(site: Site, system: System) -> str | None:
    """Who has the system now, as a text like `job 12 (process 345)`."""
    path = lease_file(site, system)
    with changing(site, system):
        return holder_of(path) if is_held(path) else None


def sessions(site: Site, system: System) -> list[Session]:
    """The holder, then those who wait, in their order."""
    running = _sessions([holder(site, system) or ""], SessionState.RUNNING)
    line = WaitingLine(line_dir(site, system))
    waiting = _sessions(line.holders(), SessionState.WAITING)
    return [*running, *(s for s in waiting if s.job not in {r.job for r in running})]


def cancel(site: Site, system: System, job: int) -> int | None:
    """Ask a session's launcher to end its job, as Ctrl-C would; the launcher's process id.

    On a cluster the launcher may be on another machine: Slurm is asked, and the answer None.

    Raises: UsageError when the job has no session here, or is someone else's
    """
    known = [session.job for session in sessions(site, system)]
    if job not in known:
        listed = ", ".join(map(str, known)) or "none"
        raise UsageError(f"job {job} has no session on {system.name}; it has: {listed}")
    if site.scheduler is Scheduler.SLURM:
        scancel(job)
        return None
    launcher = _launcher(site, job)
    try:
        os.kill(launcher, signal.SIGCONT)  # one stopped by Ctrl-Z would not hear the other
        os.kill(launcher, signal.SIGINT)
    except PermissionError as error:
        raise UsageError(
            f"job {job} is {_user_of(launcher)}'s: only its owner can cancel it"
        ) from error
    except ProcessLookupError as error:
        raise CsrunError(f"job {job}: its launcher, process {launcher}, has ended") from error
    return launcher


def telemetry(site: Site, system: System) -> Telemetry | None:
    """How far the run on the system is, in its own words; None while none has said anything."""
    match = _HOLDER.fullmatch(holder(site, system) or "")
    said = Telemetry.read(_job_dir(site, match["job"])) if match else None
    return said if said is not None and said.system == system.name else None


def _sessions(holders: list[str], state: SessionState) -> list[Session]:
    """Those of the holders that are jobs; an administrator's command may be one, for a moment."""
    found = (_HOLDER.fullmatch(text) for text in holders)
    return [
        Session(int(match["job"]), state, int(match["process"]), _user_of(match["process"]))
        for match in found
        if match
    ]


def _launcher(site: Site, job: int) -> int:
    lock_file = _job_dir(site, job) / LIVE_LOCK
    match = _HOLDER.fullmatch(holder_of(lock_file))
    if match is None or not is_held(lock_file):
        raise CsrunError(
            f"job {job} has no launcher on this machine; 'csctl cancel job {job}' cancels it where "
            "it was launched"
        )
    return int(match["process"])


def _job_dir(site: Site, job: int | str) -> Path:
    return jobs_dir_of(site.name, site.jobs_dir) / str(job)


def _user_of(process: int | str) -> str | None:
    """The name of a process's user; None when it runs on another machine, or no more."""
    try:
        uid = Path(f"/proc/{process}").stat().st_uid
    except FileNotFoundError:
        return None
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
