"""The sessions of a CS system: the job that holds it, those that wait for it, how far a run is."""

from enum import StrEnum

import msgspec

from csrun.base.errors import UsageError
from csrun.context import Telemetry, jobs_dir_of
from csrun.context.job import LIVE_LOCK, TELEMETRY_FILE
from csrun.jobs.overview import SystemStatus
from csrun.site import Site, System
from csrun.system import is_held


class SessionState(StrEnum):
    """Whether a job has the system, or waits for it."""

    RUNNING = "RUNNING"
    WAITING = "WAITING"


class Session(msgspec.Struct, frozen=True):
    """One job that holds or wants a system; name and user are None when its record is gone."""

    job: int
    state: SessionState
    name: str | None
    user: str | None


def sessions_of(system: SystemStatus, owners: dict[int, tuple[str, str]]) -> list[Session]:
    """The holder, then those who wait, in their order; `owners`: names and users by job."""
    states = [(job, SessionState.WAITING) for job in system.waiting]
    if system.job is not None:
        states.insert(0, (system.job, SessionState.RUNNING))
    return [Session(job, state, *owners.get(job, (None, None))) for job, state in states]


def require_session(system: SystemStatus, job: int) -> None:
    """Raises: UsageError when a job neither has the system nor waits for it."""
    known = [session.job for session in sessions_of(system, {})]
    if job not in known:
        listed = ", ".join(map(str, known)) or "none"
        raise UsageError(f"job {job} has no session on {system.name}; it has: {listed}")


def telemetry(site: Site, system: System) -> Telemetry | None:
    """How far the run on the system is, in its own words; None while none has said anything.

    A system has one run at a time, so among the jobs that live there is one at most that says so.
    """
    for path in jobs_dir_of(site.name, site.jobs_dir).glob(f"*/{TELEMETRY_FILE}"):
        said = Telemetry.read(path.parent)
        if said is not None and said.system == system.name and is_held(path.parent / LIVE_LOCK):
            return said
    return None
