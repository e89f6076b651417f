"""State of a site's jobs, nodes and systems, from its register, and progress of the runs."""

from collections.abc import Iterable, Sequence
from enum import StrEnum

import msgspec

from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.context import Telemetry, every_jobs_dir
from csrun.context.job import LIVE_LOCK, LeaseRecord
from csrun.jobs import register
from csrun.jobs.folder import published_jobs_dir
from csrun.jobs.queue import node_names
from csrun.jobs.record import JobRecord, RecordState
from csrun.site import Site, System
from csrun.system import Power, SystemState, is_held, load_state

SHOWN_ENDED = 10


class NodeState(StrEnum):
    """State of a node of csrun's own scheduler, which gives a node to one job at a time."""

    IDLE = "IDLE"
    ALLOCATED = "ALLOCATED"


class LocalNode(msgspec.Struct, frozen=True):
    """A node of csrun's own scheduler. Units: memory_gb in GiB."""

    name: str
    state: NodeState
    job: int | None
    cpus: int
    memory_gb: int

    @property
    def job_ids(self) -> tuple[int, ...]:
        """Job that has it, as a tuple like for schedulers whose nodes run several jobs."""
        return () if self.job is None else (self.job,)


class SystemStatus(msgspec.Struct, frozen=True):
    """One CS system: the job that has it, and those that wait for it, in order.

    unavailable: reason why no job can get it now; empty if one could.
    """

    name: str
    address: str
    mode: ExecutionMode
    power: Power
    job: int | None
    waiting: tuple[int, ...]
    unavailable: str = ""

    @staticmethod
    def of(
        system: System,
        state: SystemState,
        job: int | None,
        waiting: tuple[int, ...],
        out_of_service: str = "",
    ) -> "SystemStatus":
        """Return a system in a state; out_of_service: reason why the scheduler does not allocate
        it.
        """
        unavailable = out_of_service if state.power is Power.ACTIVE else f"in {state.power}"
        return SystemStatus(
            system.name, system.address, state.mode, state.power, job, waiting, unavailable
        )

    @property
    def users(self) -> int:
        """Number of jobs that hold it or wait for it."""
        return (self.job is not None) + len(self.waiting)


def jobs(site: Site, all_states: bool) -> list[JobRecord]:
    """Return pending and running jobs, with all or the latest of the ended ones."""
    records = register.read_all(site)
    over = [record for record in records if not record.is_active]
    hidden = {record.job_id for record in over[:-SHOWN_ENDED]} if not all_states else set()
    shown = (record for record in records if record.job_id not in hidden)
    return [_with_reason(record, records, site) for record in shown]


def job(site: Site, job_id: int) -> JobRecord:
    """Return one job.

    Raises: UsageError for an unknown number
    """
    record = register.read(site, job_id)
    records = register.read_all(site) if record.is_active else ()
    return _with_reason(record, records, site)


def nodes(site: Site) -> list[LocalNode]:
    """Return all nodes of a site, with their jobs."""
    job_of = {name: job.job_id for job in _running(site) for name in job.node_names}
    cpus, memory_gb = site.nodes.cpus, site.nodes.memory_gb
    return [
        LocalNode(
            name,
            NodeState.ALLOCATED if name in job_of else NodeState.IDLE,
            job_of.get(name),
            cpus,
            memory_gb,
        )
        for name in node_names(site)
    ]


def systems(site: Site) -> list[SystemStatus]:
    """Return all CS systems of a site, with the jobs that have them and those that wait for
    them.
    """
    running = _running(site)
    found = []
    for system in site.systems:
        state = load_state(site, system)
        holder, waiting = _sessions(running, system.name)
        found.append(SystemStatus.of(system, state, holder, waiting))
    return found


def _with_reason(record: JobRecord, records: Sequence[JobRecord], site: Site) -> JobRecord:
    """Add the current reason for waiting to a record."""
    reason = ""
    if record.state is RecordState.PENDING:
        reason = _missing_nodes(record, records, site)
    else:
        running = _of_running(records)
        reason = "; ".join(_awaited(use.system, running) for use in _wanted(record))
    return msgspec.structs.replace(record, reason=reason)


def _awaited(system: str, running: Iterable[JobRecord]) -> str:
    holder, _ = _sessions(running, system)
    return system + ("" if holder is None else f", held by job {holder}")


def _missing_nodes(record: JobRecord, records: Sequence[JobRecord], site: Site) -> str:
    held = ", ".join(f"job {r.job_id} holds {len(r.node_names)}" for r in _of_running(records))
    earlier = (r for r in records if r.state is RecordState.PENDING and r.job_id < record.job_id)
    first = ", ".join(f"job {r.job_id} is ahead of it" for r in earlier)
    what = f"{record.nodes} of the {site.nodes.count} nodes"
    return ": ".join(filter(None, (what, ", ".join(filter(None, (held, first))))))


def _running(site: Site) -> list[JobRecord]:
    return _of_running(register.read_all(site))


def _of_running(records: Iterable[JobRecord]) -> list[JobRecord]:
    return [record for record in records if record.state is RecordState.RUNNING]


def _sessions(running: Iterable[JobRecord], system: str) -> tuple[int | None, tuple[int, ...]]:
    holder: int | None = None
    waiting = []
    for record in running:
        for use in record.systems:
            if use.system == system and use.taken and not use.released:
                holder = record.job_id
        for wanted in _wanted(record):
            if wanted.system == system:
                waiting.append((wanted.requested, record.job_id))
    return holder, tuple(job for _, job in sorted(waiting))


def _wanted(record: JobRecord) -> tuple[LeaseRecord, ...]:
    """Return the systems that a running job has requested, all or none, and not received."""
    newest = record.systems[-1] if record.is_active and record.systems else None
    if newest is None or newest.taken is not None:
        return ()
    return tuple(use for use in record.systems if use.requested == newest.requested)


class SessionState(StrEnum):
    """State of a job's session on a system."""

    RUNNING = "RUNNING"
    WAITING = "WAITING"


class SystemSession(msgspec.Struct, frozen=True):
    """One job that holds or waits for a system; name and user are None if its record is gone."""

    job: int
    state: SessionState
    name: str | None
    user: str | None


def sessions_of(system: SystemStatus, owners: dict[int, tuple[str, str]]) -> list[SystemSession]:
    """Return the holder, then the waiting jobs in order; owners: names and users by job."""
    states = [(job, SessionState.WAITING) for job in system.waiting]
    if system.job is not None:
        states.insert(0, (system.job, SessionState.RUNNING))
    return [SystemSession(job, state, *owners.get(job, (None, None))) for job, state in states]


def require_session(system: SystemStatus, job: int) -> None:
    """Raises: UsageError if a job neither has the system nor waits for it"""
    known = [session.job for session in sessions_of(system, {})]
    if job not in known:
        listed = ", ".join(map(str, known)) or "none"
        raise UsageError(f"job {job} has no session on {system.name}; it has: {listed}")


def telemetry(site: Site, system: System) -> Telemetry | None:
    """Return the progress of the run on the system; None before the first report.

    A system has one run at a time, so at most one of its living jobs reports progress.
    """
    folders = every_jobs_dir(site.name, site.jobs_dir, site.shared)
    own = (job for folder in folders for job in folder.glob("*"))
    shown = published_jobs_dir(site).glob("*/*") if site.shared else ()
    for folder in (*own, *shown):
        said = Telemetry.read(folder)
        if said is not None and system.name in said.systems and is_held(folder / LIVE_LOCK):
            return said
    return None
