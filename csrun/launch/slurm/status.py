"""The jobs of a cluster, as squeue tells them to a program.

Source: squeue(1), --json; later versions wrap a number that may be unset, and list a job's states
"""

import subprocess
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import msgspec

from csrun.errors import UsageError
from csrun.launch.slurm.cluster import explain, require_commands
from csrun.site import Site


class SlurmJob(msgspec.Struct, frozen=True):
    """One job that Slurm has; the components of a heterogeneous one are told as one job."""

    job_id: int
    name: str
    user: str
    state: str
    reason: str
    nodes: int
    tasks: int
    node_names: tuple[str, ...]
    system: str
    submitted: datetime
    started: datetime | None

    @property
    def elapsed_s(self) -> float:
        """For how long the job has run."""
        now = datetime.now(UTC)
        return max(0.0, (now - self.started).total_seconds()) if self.started else 0.0


def jobs(site: Site) -> list[SlurmJob]:
    """The jobs that wait or run, and those that Slurm still remembers.

    Raises: UsageError without Slurm's commands; CsrunError when Slurm does not answer
    """
    require_commands(site)
    done = subprocess.run(("squeue", "--json"), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise explain(done.stderr, site)
    return parse(done.stdout, site)


def job(site: Site, job_id: int) -> SlurmJob:
    """One of them.

    Raises: UsageError for an unknown one, and as `jobs`
    """
    for found in jobs(site):
        if found.job_id == job_id:
            return found
    raise UsageError(f"job {job_id}: Slurm knows no such job any more, or never did")


def cancel(site: Site, job_id: int) -> None:
    """Ask Slurm to end a job; its tasks finish what they do.

    Raises: UsageError when it will not: no such job, or someone else's
    """
    require_commands(site)
    done = subprocess.run(
        ("scancel", "--verbose", str(job_id)), capture_output=True, text=True, check=False
    )
    refusals = [line for line in done.stderr.splitlines() if "error:" in line]
    if refusals:
        raise UsageError(f"job {job_id}: {refusals[0].partition('error: ')[2]}")


def parse(text: str, site: Site) -> list[SlurmJob]:
    """The jobs in squeue's answer."""
    components: dict[int, list[dict[str, Any]]] = {}
    for found in msgspec.json.decode(text)["jobs"]:
        leader = _number(found.get("het_job_id")) or _number(found["job_id"])
        components.setdefault(leader, []).append(found)
    return [_job(job_id, parts, site) for job_id, parts in sorted(components.items())]


def _job(job_id: int, parts: list[dict[str, Any]], site: Site) -> SlurmJob:
    first = min(parts, key=lambda part: _number(part.get("het_job_offset")))
    state = first["job_state"]
    started = _number(first.get("start_time"))
    has_started = state not in ("PENDING", ["PENDING"]) and started
    return SlurmJob(
        job_id=job_id,
        name=first["name"],
        user=first["user_name"],
        state=state if isinstance(state, str) else ",".join(state),
        reason="" if first["state_reason"] == "None" else first["state_reason"],
        nodes=sum(_number(part["node_count"]) for part in parts),
        tasks=sum(_number(part["tasks"]) for part in parts),
        node_names=tuple(part["nodes"] for part in parts if part.get("nodes")),
        system=_system((part.get("tres_per_node") or "" for part in parts), site),
        submitted=datetime.fromtimestamp(_number(first["submit_time"]), UTC),
        started=datetime.fromtimestamp(started, UTC) if has_started else None,
    )


def _system(asked: Iterable[str], site: Site) -> str:
    """The system whose resource a job asks for; empty when it asks for none, or any."""
    text = f"{','.join(asked)},"
    for system in site.systems:
        if f"{site.gres_of(system.name)}," in text and "{system}" in (site.gres or ""):
            return system.name
    return ""


def _number(value: Any) -> int:
    return int(value["number"] if isinstance(value, dict) else value or 0)
