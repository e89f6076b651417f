"""Waiting for nodes: job ids, node leases, first come, first served."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from csrun.context import site_state_dir
from csrun.errors import UsageError
from csrun.files import write_whole
from csrun.launch.folder import job_ids, jobs_dir_of
from csrun.site import Site
from csrun.system import FileLock, WaitingLine, holder_of, lock, try_lock, wait_in_line

Say = Callable[[str], None]


@dataclass(frozen=True)
class Allocation:
    """Nodes that a job has to itself: names, in the order of the job's node ids."""

    nodes: tuple[str, ...]
    locks: tuple[FileLock, ...]

    def release(self) -> None:
        """Give this process's hold on the nodes up."""
        for held in self.locks:
            held.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def next_job_id(site: Site) -> int:
    """Draw a job id that no job of the site has had.

    Raises: UsageError when csrun's state cannot be written
    """
    folder = site_state_dir(site.name)
    try:
        return _next_number(folder, jobs_dir_of(site.name))
    except OSError as error:
        raise UsageError(
            f"state folder {folder}: cannot be written: {error.strerror}; set CSRUN_STATE_DIR to a "
            "folder that can"
        ) from error


def _next_number(folder: Path, jobs_dir: Path) -> int:
    counter = folder / "last_job"
    with lock(folder / "last_job.lock", f"process {os.getpid()}"):
        number = 1 + max(_number_in(counter), *job_ids(jobs_dir), 0)
        write_whole(counter, str(number).encode(), durable=False)
    return number


def _number_in(counter: Path) -> int:
    """The number last drawn; 0 when the file is lost, or damaged by a crash of the machine."""
    text = counter.read_bytes() if counter.exists() else b""
    return int(text) if text.isdigit() else 0


def allocate(site: Site, count: int, job_id: int, say: Say) -> Allocation:
    """Lease `count` nodes, all or none, in turn; `say` gets srun's lines, and who is waited for."""
    folder = site_state_dir(site.name) / "nodes"
    holder = f"job {job_id} (process {os.getpid()})"
    say(f"srun: job {job_id} queued and waiting for resources")
    allocation = wait_in_line(
        WaitingLine(folder / "line"),
        holder,
        lambda: _try_allocate(folder, site, count, holder),
        lambda: say(_waiting_for(folder, site, count)),
    )
    say(f"srun: job {job_id} has been allocated resources")
    return allocation


def node_names(site: Site) -> tuple[str, ...]:
    """The site's nodes, in the order in which free ones are taken."""
    return tuple(f"{site.nodes.name_prefix}{n}" for n in range(1, site.nodes.count + 1))


def _try_allocate(folder: Path, site: Site, count: int, holder: str) -> Allocation | None:
    names: list[str] = []
    locks: list[FileLock] = []
    for name in node_names(site):
        if len(names) == count:
            break
        if taken := try_lock(_lock_file(folder, name), holder):
            names.append(name)
            locks.append(taken)
    allocation = Allocation(tuple(names), tuple(locks))
    if len(names) == count:
        return allocation
    allocation.release()
    return None


def _waiting_for(folder: Path, site: Site, count: int) -> str:
    nodes_of: dict[str, int] = {}
    for name in node_names(site):
        free = try_lock(_lock_file(folder, name), "")
        if free:
            free.release()
        else:
            holder = holder_of(_lock_file(folder, name))
            nodes_of[holder] = nodes_of.get(holder, 0) + 1
    held = ", ".join(f"{holder} holds {nodes}" for holder, nodes in nodes_of.items())
    return (
        f"csrun: waiting for {count} of the {site.nodes.count} nodes of site {site.name}:"
        f" {held or 'other jobs are before this one'}"
    )


def _lock_file(folder: Path, node: str) -> Path:
    return folder / f"{node}.lock"
