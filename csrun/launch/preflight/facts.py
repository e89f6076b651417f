"""Facts of one node, as its probe finds them."""

import os
import resource
from pathlib import Path

import msgspec
import psutil

from csrun.base.version import installed_versions

UNLIMITED = -1


class NodeFacts(msgspec.Struct, frozen=True):
    """One node. The folder is the one of the site's jobs.

    folder_problem: why it cannot be written, empty when it can. read_from: the nodes whose files
    in it could be read. clock_ahead_s: of other nodes before this one's. unreached: the nodes whose
    port does not answer, with the reason.

    Units: limits are UNLIMITED where there is none
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
    """Facts that need no other node."""
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
    """The hard limit: csrun raises the soft one to it."""
    _, hard = resource.getrlimit(which)
    return UNLIMITED if hard == resource.RLIM_INFINITY else hard
