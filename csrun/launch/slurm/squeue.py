"""Jobs, nodes and CS systems of a cluster, from Slurm and the systems' register.

Source: squeue(1), --json; later versions wrap a number that may be unset, and list a job's states
"""

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import msgspec

from csrun.base.errors import UsageError
from csrun.jobs.job_labels import text as labels_text
from csrun.jobs.overview import SystemStatus
from csrun.jobs.time_limit import format_duration, when
from csrun.launch.slurm import sinfo
from csrun.launch.slurm.job_comment import LOST, note_of
from csrun.site import Site
from csrun.system import load_state

_UNKNOWN_JOB = "Invalid job id"  # in an answer of scancel
_WAITING = frozenset({"PENDING"})
_ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
     "PREEMPTED", "TIMEOUT"}
)  # fmt: skip


_UNAVAILABLE = re.compile(r"UnavailableNodes:(\S+)")


def waits_for(reason: str) -> str:
    """Return the reason why a job is pending, in Slurm's words, or the nodes that accept no
    jobs.
    """
    missing = _UNAVAILABLE.search(reason)
    what = f"{missing[1]}: drained, down or reserved" if missing else reason
    return f"waits for {what}"


class SlurmJob(msgspec.Struct, frozen=True):
    """One Slurm job; the components of a heterogeneous job are merged.

    reason: why it is pending, or why it failed, in Slurm's words.
    """

    job_id: int
    name: str
    user: str
    state: str
    reason: str
    nodes: int
    tasks: int
    node_names: tuple[str, ...]
    systems: tuple[str, ...]
    submitted: datetime
    started: datetime | None
    ended: datetime | None
    account: str = ""
    type: str = ""
    labels: dict[str, str] = {}

    @property
    def is_waiting(self) -> bool:
        """True as long as it has no nodes."""
        return self.state in _WAITING

    @property
    def is_running(self) -> bool:
        """True while it has its nodes, including a completing job."""
        return not self.is_waiting and self.ended is None

    @property
    def system(self) -> str:
        """System, or systems, that it has or waits for; empty if it requested none."""
        return ", ".join(self.systems)

    @property
    def why(self) -> str:
        """Reason why the job is pending, or why it failed."""
        if not self.is_waiting or not self.reason:
            return self.reason
        return waits_for(self.reason)

    def details(self) -> Iterator[tuple[str, str]]:
        """Details of the job, by name."""
        said = {
            "job": str(self.job_id),
            "name": self.name,
            "type": self.type,
            "labels": labels_text(self.labels),
            "user": self.user,
            "account": self.account,
            "state": self.state,
            "why": self.why,
            "tasks": f"{self.tasks} on {self.nodes} node{'s' * (self.nodes > 1)}",
            "nodes": ", ".join(self.node_names),
            "system": self.system,
            "submitted": when(self.submitted),
            "started": when(self.started),
            "ended": when(self.ended),
            "time": format_duration(self.elapsed_s),
        }
        yield from ((key, value) for key, value in said.items() if value)

    @property
    def elapsed_s(self) -> float:
        """Run time of the job so far, or in total, in seconds."""
        until = self.ended or datetime.now(UTC)
        return max(0.0, (until - self.started).total_seconds()) if self.started else 0.0


class SlurmNode(msgspec.Struct, frozen=True):
    """One node of the cluster; the state is as Slurm names it. Units: memory_gb in GiB."""

    name: str
    state: str
    jobs: tuple[int, ...]
    cpus: int
    memory_gb: int

    @property
    def job_ids(self) -> tuple[int, ...]:
        """Return the jobs that use it."""
        return self.jobs


def jobs(site: Site) -> list[SlurmJob]:
    """Return pending and running jobs, and ended ones that Slurm still knows.

    Raises: UsageError without Slurm's commands; CsrunError if Slurm does not answer
    """
    return parse(sinfo.query(site, "squeue", "--json"), site)


def nodes(site: Site) -> list[SlurmNode]:
    """Return all nodes of the cluster, and the jobs that use them.

    Raises: as `jobs`
    """
    found = sinfo.nodes(site)
    names = {job.job_id: node_names(job, site) for job in jobs(site) if job.is_running}
    return [
        SlurmNode(
            node.name,
            node.state.upper(),
            tuple(job_id for job_id, on in names.items() if node.name in on),
            node.cpus,
            node.memory_gb,
        )
        for node in found
    ]


def systems(site: Site) -> list[SystemStatus]:
    """Return the CS systems of the site, the jobs that have them, and those that wait for them.

    Raises: as `jobs`
    """
    known, its_nodes = jobs(site), sinfo.nodes(site)
    found = []
    for system in site.systems:
        state = load_state(site, system)
        asking = [job for job in known if system.name in job.systems]
        holder = next((job.job_id for job in asking if job.is_running), None)
        waiting = tuple(job.job_id for job in asking if job.is_waiting)
        out_of_service = sinfo.unavailable(its_nodes, site.gres_of(system.name))
        found.append(SystemStatus.of(system, state, holder, waiting, out_of_service))
    return found


@dataclass(frozen=True)
class JobComponent:
    """One component of a running job; `gres` as requested, e.g. `gres:cs:cs2-02:1`."""

    nodes: int
    cpus: int
    gres: str


def parts(site: Site, job_id: int) -> list[JobComponent]:
    """Return the components of one job, in order; none for a job unknown to Slurm.

    Raises: as `jobs`
    """
    return parse_parts(sinfo.query(site, "squeue", "--json"), site, job_id)


def parse_parts(text: str, site: Site, job_id: int) -> list[JobComponent]:
    """Parse the components of one job in squeue's answer."""
    found = sorted(_components(text, site).get(job_id, []), key=_offset)
    return [
        JobComponent(_number(p["node_count"]), _number(p["cpus"]), p.get("tres_per_node") or "")
        for p in found
    ]


def job(site: Site, job_id: int) -> SlurmJob:
    """Return one job.

    Raises: UsageError for an unknown one, and as `jobs`
    """
    for found in jobs(site):
        if found.job_id == job_id:
            return found
    raise unknown_job(job_id)


def unknown_job(job_id: int) -> UsageError:
    """Return the refusal of a job that Slurm does not have."""
    return UsageError(
        f"job {job_id}: no such job in Slurm (unknown or purged); 'csctl get jobs' lists its jobs"
    )


def cancel(site: Site, job_id: int) -> None:
    """Ask Slurm to cancel a job, whose tasks may finish current work.

    Raises: UsageError for an unknown job, or another account's; CsrunError if Slurm does not answer
    """
    sinfo.require_commands(site)
    done = subprocess.run(
        ("scancel", "--verbose", str(job_id)), capture_output=True, text=True, check=False
    )
    refusals = [line for line in done.stderr.splitlines() if "error:" in line]
    if refusals and sinfo.is_outage(refusals[0]):
        raise sinfo.explain(refusals[0], site)
    if any(_UNKNOWN_JOB in line for line in refusals):
        raise unknown_job(job_id)
    if refusals:
        raise UsageError(f"job {job_id}: {refusals[0].partition('error: ')[2]}")


def parse(text: str, site: Site) -> list[SlurmJob]:
    """Parse the jobs in squeue's answer.

    Raises: CsrunError for an answer with nothing but errors
    """
    found = _components(text, site)
    return [_job(job_id, its, site) for job_id, its in sorted(found.items())]


def _components(text: str, site: Site) -> dict[int, list[dict[str, Any]]]:
    """Group squeue's records by job; squeue exits with code 0 even if it reports errors."""
    try:
        answer = msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise sinfo.unanswered(f"squeue: not JSON: {error}", site) from error
    if errors := answer.get("errors"):
        raise sinfo.unanswered(f"squeue: {_describe_error(errors[0])}", site)
    components: dict[int, list[dict[str, Any]]] = {}
    for found in answer["jobs"]:
        leader = _number(found.get("het_job_id")) or _number(found["job_id"])
        components.setdefault(leader, []).append(found)
    return components


def _offset(part: dict[str, Any]) -> int:
    return _number(part.get("het_job_offset"))


def _describe_error(error: dict[str, Any]) -> str:
    """`Failed while looking for jobs (slurm_load_jobs: Unspecified error)`"""
    source = ": ".join(filter(None, (error.get("source"), error.get("error"))))
    description = error.get("description") or "an error without a description"
    return f"{description} ({source})" if source else description


def _job(job_id: int, parts: list[dict[str, Any]], site: Site) -> SlurmJob:
    first = min(parts, key=_offset)
    state = first["job_state"]
    started = _number(first.get("start_time"))
    states = {state} if isinstance(state, str) else set(state)
    ended = _number(first.get("end_time")) if states <= _ENDED else 0
    has_started = not states & _WAITING and started
    return SlurmJob(
        job_id=job_id,
        name=first["name"],
        user=first["user_name"],
        state=",".join(sorted(states)),
        reason=_reason(parts),
        nodes=sum(_number(part["node_count"]) for part in parts),
        tasks=sum(_number(part["tasks"]) for part in parts),
        node_names=tuple(part["nodes"] for part in parts if part.get("nodes")),
        systems=_systems((part.get("tres_per_node") or "" for part in parts), site),
        submitted=datetime.fromtimestamp(_number(first["submit_time"]), UTC),
        started=datetime.fromtimestamp(started, UTC) if has_started else None,
        ended=datetime.fromtimestamp(ended, UTC) if ended else None,
        account=first.get("account") or "",
    )


def _reason(parts: list[dict[str, Any]]) -> str:
    """Return csrun's note of a started job, else Slurm's reason for the first component that has
    one, with the nodes that it names.
    """
    for part in parts:
        own = note_of(part.get("comment") or "")
        if own and part["job_state"] not in (*_WAITING, [*_WAITING]):
            return LOST if LOST.endswith(own) else own
    for part in sorted(parts, key=_offset):
        if part["state_reason"] != "None":
            return str(part.get("state_description") or part["state_reason"])
    return ""


def node_names(job: SlurmJob, site: Site) -> frozenset[str]:
    """Expand `node1`, `node[3-4]` to the names of three nodes."""
    listed = ",".join(job.node_names)
    return frozenset(
        sinfo.query(site, "scontrol", "show", "hostnames", listed).split() if listed else ()
    )


def _systems(asked: Iterable[str], site: Site) -> tuple[str, ...]:
    """Return the systems that a job requests by their resources; none if it names none."""
    if not site.gres_names_systems:
        return ()
    text = f"{','.join(asked)},"
    names = (system.name for system in site.systems)
    return tuple(name for name in names if f"{site.gres_of(name)}," in text)


def _number(value: Any) -> int:
    return int(value["number"] if isinstance(value, dict) else value or 0)
