"""Waiting for nodes: node leases, first come, first served."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from csrun.context import site_state_dir
from csrun.site import Site
from csrun.system import (
    FileLock,
    TicketQueue,
    holder_of,
    is_held,
    lock_errors,
    try_lock,
    wait_in_queue,
)

Report = Callable[[str], None]


@dataclass(frozen=True)
class NodeAllocation:
    """Nodes leased by one job: names, in the order of the job's node ids."""

    nodes: tuple[str, ...]
    locks: tuple[FileLock, ...]

    def release(self) -> None:
        """Release this process's hold on the nodes."""
        for held in self.locks:
            held.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def allocate(site: Site, count: int, job_id: int, log: Report, on_wait: Report) -> NodeAllocation:
    """Lease `count` nodes, all or none, in the order of requests.

    on_wait: called with what is waited for.
    log: called with the same in the form of srun's messages.
    """
    folder = site_state_dir(site.name) / "nodes"
    holder = f"job {job_id} (process {os.getpid()})"

    def report() -> None:
        reason = _waiting_for(folder, site, count)
        log(f"csrun: waiting for {reason}")
        on_wait(reason)

    log(f"srun: job {job_id} queued and waiting for resources")
    allocation = wait_in_queue(
        TicketQueue(folder / "line", site.shared),
        holder,
        lambda: _try_allocate(folder, site, count, holder),
        report,
    )
    log(f"srun: job {job_id} has been allocated resources")
    return allocation


def node_names(site: Site) -> tuple[str, ...]:
    """Return the site's nodes, in the order in which free ones are taken."""
    return tuple(f"{site.nodes.name_prefix}{n}" for n in range(1, site.nodes.count + 1))


def _try_allocate(folder: Path, site: Site, count: int, holder: str) -> NodeAllocation | None:
    names: list[str] = []
    locks: list[FileLock] = []
    for name in node_names(site):
        if len(names) == count:
            break
        path = _lock_file(folder, name)
        with lock_errors(path):
            taken = try_lock(path, holder, site.shared)
        if taken:
            names.append(name)
            locks.append(taken)
    allocation = NodeAllocation(tuple(names), tuple(locks))
    if len(names) == count:
        return allocation
    # All or none: two jobs that each hold a part would wait for each other.
    allocation.release()
    return None


def _waiting_for(folder: Path, site: Site, count: int) -> str:
    nodes_of: dict[str, int] = {}
    for name in node_names(site):
        if is_held(_lock_file(folder, name)):
            holder = holder_of(_lock_file(folder, name))
            nodes_of[holder] = nodes_of.get(holder, 0) + 1
    held = ", ".join(f"{holder} holds {nodes}" for holder, nodes in nodes_of.items())
    return (
        f"{count} of the {site.nodes.count} nodes of site {site.name}:"
        f" {held or 'other jobs are ahead of this one'}"
    )


def _lock_file(folder: Path, node: str) -> Path:
    return folder / f"{node}.lock"
