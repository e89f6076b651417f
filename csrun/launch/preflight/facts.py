"""Facts of one node, gathered by its probe."""

import os
import resource
from pathlib import Path

import msgspec
import psutil

from csrun.base.version import installed_versions

UNLIMITED = -1


class NodeFacts(msgspec.Struct, frozen=True):
    """Facts of one node; the folder is that of the site's jobs.

    folder_problem: reason why it cannot be written; empty if it can.
    read_from: nodes whose files in it could be read.
    clock_ahead_s: by how much the clocks of other nodes are ahead of this one's.
    unreached: nodes whose port does not answer, with the reason.

    Units: limits are UNLIMITED if there is none
    """

    node: str
    versions: dict[str, str]
    memory_free_mb: int
    disk_free_mb: int
    open_files: int
    processes: int
    folder_problem: str = ""
    read_from: tuple[str, ...] = ()
    clock_ahead_s: dict[str, float] = {}
    unreached: dict[str, str] = {}


def facts_here(node: str, folder: Path) -> NodeFacts:
    """Return the facts that need no other node."""
    problem, free_mb = _try_folder(folder, node)
    return NodeFacts(
        node=node,
        versions=installed_versions(),
        memory_free_mb=psutil.virtual_memory().available >> 20,
        disk_free_mb=free_mb,
        open_files=_limit(resource.RLIMIT_NOFILE),
        processes=_limit(resource.RLIMIT_NPROC),
        folder_problem=problem,
    )


def _try_folder(folder: Path, node: str) -> tuple[str, int]:
    written = folder / f".csrun-check-{node}-{os.getpid()}"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        written.write_bytes(b"csrun")
        written.unlink()
        disk = os.statvfs(folder)
    except OSError as error:
        return f"{folder}: {error.strerror}", 0
    return "", disk.f_bavail * disk.f_frsize >> 20


def _limit(which: int) -> int:
    """Return the hard limit, to which csrun raises the soft one."""
    _, hard = resource.getrlimit(which)
    return UNLIMITED if hard == resource.RLIM_INFINITY else hard
