"""Checks of nodes: each is a function from facts to results. Pure."""

from collections.abc import Iterator, Sequence
from enum import StrEnum
from pathlib import Path

import msgspec

from csrun.base.version import differing
from csrun.launch.preflight.facts import UNLIMITED, NodeFacts

LEAST_MEMORY_MB = 2048
LEAST_DISK_MB = 1024
LEAST_OPEN_FILES = 4096  # one connection for each of the chief's tasks
LEAST_PROCESSES = 4096
MOST_CLOCK_S = 1.0
ALL_NODES = "all"


class Status(StrEnum):
    """Outcome of a check."""

    OK = "ok"
    FAILED = "FAILED"
    SKIPPED = "skipped"


class CheckResult(msgspec.Struct, frozen=True):
    """Result of a check of one node, or of all; `remedy` is empty if none is needed."""

    check: str
    node: str
    status: Status
    result: str
    remedy: str = ""

    @property
    def has_failed(self) -> bool:
        return self.status is Status.FAILED


def judge(check: str, node: str, is_good: bool, result: str, remedy: str) -> CheckResult:
    """Return the result of a check; a passed one needs no remedy."""
    if is_good:
        return CheckResult(check, node, Status.OK, result)
    return CheckResult(check, node, Status.FAILED, result, remedy)


def versions(found: Sequence[NodeFacts]) -> Iterator[CheckResult]:
    """Check that csrun, Python, NumPy and torch have the same versions on all nodes."""
    different = differing((each.node, each.versions) for each in found)
    names = dict.fromkeys(name for each in found for name in each.versions)
    for name in names:
        by_version = different.get(name, {})
        listed = "; ".join(f"{version} on {', '.join(on)}" for version, on in by_version.items())
        remedy = f"install one {name} on all nodes"
        result = listed or found[0].versions.get(name, "none")
        yield judge(f"version of {name}", ALL_NODES, not by_version, result, remedy)


def jobs_dir(each: NodeFacts, folder: Path) -> CheckResult:
    """Check that the folder of jobs is writable."""
    result, remedy = each.folder_problem or str(folder), "set jobs_dir in the site file"
    return judge("jobs_dir writable", each.node, not each.folder_problem, result, remedy)


def shared_folder(each: NodeFacts, asked: Sequence[str]) -> CheckResult:
    """Check that files of other nodes in the folder of jobs are readable here."""
    missing = sorted(set(asked) - set(each.read_from))
    result = (
        f"cannot read files of {', '.join(missing)}"
        if missing
        else f"reads files of {len(asked)} nodes"
    )
    remedy = "set jobs_dir to a folder on a file system that all nodes share"
    return judge("jobs_dir shared", each.node, not missing, result, remedy)


def clock(each: NodeFacts) -> CheckResult:
    """Check that the clock agrees with those of the other nodes."""
    worst = max(each.clock_ahead_s, key=lambda n: abs(each.clock_ahead_s[n]), default=each.node)
    ahead_s = each.clock_ahead_s.get(worst, 0.0)
    result = f"{worst} is {ahead_s:+.3f} s"
    good = abs(ahead_s) <= MOST_CLOCK_S
    return judge("clock", each.node, good, result, "run chrony or ntpd on all nodes")


def network(each: NodeFacts) -> CheckResult:
    """Check that TCP ports of the other nodes are reachable."""
    reasons = "; ".join(f"{node}: {why}" for node, why in each.unreached.items())
    result = reasons or f"reaches {len(each.clock_ahead_s)} nodes"
    remedy = "open the ephemeral TCP ports between the nodes (sysctl net.ipv4.ip_local_port_range)"
    return judge("network", each.node, not each.unreached, result, remedy)


def memory(each: NodeFacts) -> CheckResult:
    """Check that enough memory for tasks is free."""
    good = each.memory_free_mb >= LEAST_MEMORY_MB
    result, remedy = f"{each.memory_free_mb:,} MiB free", f"free {LEAST_MEMORY_MB:,} MiB"
    return judge("memory", each.node, good, result, remedy)


def disk(each: NodeFacts) -> CheckResult:
    """Check that the file system of the folder of jobs has enough space."""
    good = each.disk_free_mb >= LEAST_DISK_MB
    remedy = "free disk space, or set jobs.keep_mb or jobs.keep_days and run 'csrun site clean'"
    return judge("disk of jobs_dir", each.node, good, f"{each.disk_free_mb:,} MiB free", remedy)


def limits(each: NodeFacts) -> Iterator[CheckResult]:
    """Check that the hard limits of a process allow a large job."""
    for check, have, least, option in (
        ("open files", each.open_files, LEAST_OPEN_FILES, "-n"),
        ("processes", each.processes, LEAST_PROCESSES, "-u"),
    ):
        good = have == UNLIMITED or have >= least
        result = "unlimited" if have == UNLIMITED else f"{have:,}"
        remedy = f"raise 'ulimit -H {option}' to {least:,} (limits.conf, or slurmd's service)"
        yield judge(check, each.node, good, result, remedy)


def of_node(each: NodeFacts, folder: Path) -> Iterator[CheckResult]:
    """Return the results of the checks of a single node."""
    yield jobs_dir(each, folder)
    if not each.folder_problem:
        yield disk(each)
    yield memory(each)
    yield from limits(each)


def between(each: NodeFacts, asked: Sequence[str]) -> Iterator[CheckResult]:
    """Return the results of the checks of a node against the others."""
    if not each.folder_problem:
        yield shared_folder(each, asked)
    if each.read_from:
        yield network(each)
        yield clock(each)


def of_one(here: NodeFacts, folder: Path) -> list[CheckResult]:
    """Return the results of all checks of a site on one machine."""
    return [*versions([here]), *of_node(here, folder)]
