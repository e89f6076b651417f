"""Resources of the cluster from sinfo; a request that can never run is refused immediately."""

import re
import shutil
import subprocess
from dataclasses import dataclass

from csrun.base.errors import CsrunError, UsageError
from csrun.launch.srun import node_needs
from csrun.site import JobLayout, Site

SINFO = ("sinfo", "--noheader", "--Node", "--format=%N|%c|%m|%T|%G|%P", "--all")
NEEDED = ("srun", "sbatch", "scancel", "sinfo", "squeue", "scontrol")
CONTROLLER_MAY_BE_DOWN = "check its controller with 'scontrol ping'"
ANSWER_S = 30.0  # Slurm's commands give a controller ten seconds, and retry


_TAKES_NONE = re.compile(r"drain|down|fail|unknown|inval|\*$", re.IGNORECASE)  # sinfo(1), states


_DEFAULT = "*"


@dataclass(frozen=True)
class Node:
    """One node of the cluster in any state; `gres` has no counts, e.g. `cs:cs2-02`.

    partitions: as named by sinfo, with a star after the default one.

    Units: memory_gb in GiB
    """

    name: str
    cpus: int
    memory_gb: int
    state: str
    gres: frozenset[str]
    partitions: frozenset[str]

    @property
    def takes_jobs(self) -> bool:
        """False for a node that is drained, down or not responding."""
        return _TAKES_NONE.search(self.state) is None


def nodes(site: Site) -> tuple[Node, ...]:
    """Return all nodes of the cluster.

    Raises: UsageError without Slurm's commands; CsrunError if Slurm does not answer
    """
    return parse(query(site, *SINFO))


def unavailable(found: tuple[Node, ...], gres: str | None) -> str:
    """Return why no job can get a resource now, e.g. `node1 is DRAINED`; empty if one could."""
    having = [n for n in found if gres is not None and _without_count(gres) in n.gres]
    if any(node.takes_jobs for node in having):
        return ""
    return ", ".join(f"{node.name} is {node.state.upper()}" for node in having)


def check(layout: JobLayout, site: Site, gres: str | None, *partitions: str | None) -> None:
    """Check that the partitions could ever run the job.

    There is one partition for all components, or one for each; none or None means the default one.

    Raises: UsageError if they never can; CsrunError if Slurm does not answer
    """
    check_on(nodes(site), layout, site, gres, *partitions)


def check_on(
    every: tuple[Node, ...],
    layout: JobLayout,
    site: Site,
    gres: str | None,
    *partitions: str | None,
) -> None:
    """Check a job as `check`, on a cluster with these nodes.

    Raises: UsageError
    """
    needs = node_needs(layout, site.nodes.cpus)
    named = (
        partitions if len(partitions) == len(needs) else (partitions or (None,))[:1] * len(needs)
    )
    for partition in dict.fromkeys(named):
        place, found = _in_partition(every, partition, site)
        pairs = zip(needs, named, strict=True)
        wanted = [cpus for (count, cpus), its in pairs if its == partition for _ in range(count)]
        _check_nodes(wanted, site, place, found, is_whole=len(wanted) == layout.nodes)
    if gres is not None:
        place, found = _in_partition(every, named[0], site)
        _check_gres(gres.split(","), site, place, found)


def nodes_with(found: tuple[Node, ...], gres: str | None) -> tuple[Node, ...]:
    """Return the nodes that have all of some resources."""
    wanted = frozenset(map(_without_count, gres.split(","))) if gres else frozenset()
    return tuple(node for node in found if wanted and wanted <= node.gres)


def parse(text: str) -> tuple[Node, ...]:
    """Parse sinfo's answer; a node is returned once, though it is listed for each of its
    partitions.
    """
    found: dict[str, Node] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, cpus, memory_mb, state, gres, partition = line.split("|")
        its = found[name].partitions if name in found else frozenset()
        found[name] = Node(
            name,
            _least(cpus),
            _least(memory_mb) // 1024,
            state,
            _gres(gres),
            its | {partition},
        )
    return tuple(found.values())


def _in_partition(
    found: tuple[Node, ...], wanted: str | None, site: Site
) -> tuple[str, tuple[Node, ...]]:
    """Return the nodes available to a job, and a description of them.

    Raises: UsageError for an unknown partition
    """
    known = frozenset().union(*(node.partitions for node in found))
    default = frozenset(name for name in known if name.endswith(_DEFAULT))
    if wanted is None and not default:
        return "the cluster", found
    names = frozenset(wanted.split(",")) if wanted else default
    chosen = frozenset(name for name in known if {name, name.rstrip(_DEFAULT)} & names)
    if wanted and len(chosen) < len(names):
        raise UsageError(
            f"site {site.name}: no partition {wanted} in Slurm, known:"
            f" {', '.join(sorted(name.rstrip(_DEFAULT) for name in known))}"
        )
    theirs = tuple(node for node in found if node.partitions & chosen)
    if not wanted and theirs == found:
        return "the cluster", found
    return f"partition {','.join(sorted(name.rstrip(_DEFAULT) for name in chosen))}", theirs


def require_commands(site: Site) -> None:
    """Check that Slurm is installed on this machine.

    Raises: UsageError
    """
    for command in NEEDED:
        if shutil.which(command) is None:
            raise UsageError(
                f"site {site.name}: scheduler {site.scheduler}: {command}: command not found; run"
                " this on a machine that has Slurm's commands in PATH, or choose another --site"
            )


_OUTAGES = re.compile(
    r"munge|unable to contact|timed out|connect|zero bytes|fetch.config|configuration source",
    re.IGNORECASE,
)


def is_outage(error_text: str) -> bool:
    """True if an error message of Slurm means that its controller is unreachable."""
    return not error_text.strip() or _OUTAGES.search(error_text) is not None


def explain(error_text: str, site: Site) -> CsrunError:
    """Return the error for a refusal of a Slurm command, with a remedy.

    If the user can fix it, this is a UsageError in Slurm's words.
    """
    said = error_text.strip().splitlines()
    reason = said[-1] if said else "no answer"
    if not is_outage(error_text):
        refusal = re.sub(r"^\w+: error: ", "", reason)
        return UsageError(f"site {site.name}: refused by Slurm: {refusal}")
    if "munge" in error_text.lower():
        remedy = "check munge on this machine: 'systemctl status munge'"
        reason = next(line for line in said if "munge" in line.lower())
    else:
        remedy = CONTROLLER_MAY_BE_DOWN
    return unanswered(reason, site, remedy)


def unanswered(reason: str, site: Site, remedy: str = CONTROLLER_MAY_BE_DOWN) -> CsrunError:
    """Return the error of a query that Slurm does not answer."""
    return CsrunError(f"site {site.name}: Slurm does not answer: {reason}; {remedy}")


def query(site: Site, *command: str) -> str:
    """Return the output of a Slurm command.

    Raises: UsageError without Slurm's commands, and for a refused command; CsrunError if Slurm does
    not answer
    """
    require_commands(site)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=ANSWER_S
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise explain("", site) from error
    if done.returncode != 0:
        raise explain(done.stderr, site)
    return done.stdout


def _check_nodes(
    wanted: list[int], site: Site, place: str, found: tuple[Node, ...], *, is_whole: bool
) -> None:
    """Check node counts; wanted: CPUs of each node; is_whole: these are all nodes of the job."""
    if len(wanted) > len(found) and is_whole:
        raise UsageError(
            f"--total-nodes {len(wanted)}: {place} of site {site.name} has {len(found)} nodes:"
            f" use --total-nodes {len(found)}"
        )
    if len(wanted) > len(found):
        raise UsageError(
            f"site {site.name}: {len(wanted)} of the job's nodes must be in {place}, which has"
            f" {len(found)}: use fewer --total-nodes, or change slurm_options_by_role"
        )
    wanted = sorted(wanted, reverse=True)
    sizes = sorted((node.cpus for node in found), reverse=True)
    for cpus, size in zip(wanted, sizes, strict=False):
        if cpus > size:
            raise UsageError(
                f"site {site.name}: the job needs {wanted.count(cpus)} nodes of {cpus} CPUs,"
                f" {place} has {sum(size >= cpus for size in sizes)}: use fewer --tasks-per-node"
                " or --cpus-per-task, or correct nodes.cpus in the site file"
            )


def _check_gres(wanted: list[str], site: Site, place: str, found: tuple[Node, ...]) -> None:
    """Check the systems: a job needs all of them on its first node, where its wafers run."""
    names = frozenset(map(_without_count, wanted))
    if any(names <= node.gres for node in found):
        return
    known = frozenset().union(*(node.gres for node in found))
    for gres in wanted:
        if _without_count(gres) not in known:
            raise UsageError(
                f"site {site.name}: gres: no node of {place} has {gres}, known:"
                f" {', '.join(sorted(known)) or 'none'}; gres in the site file must match"
                " slurm.conf"
            )
    having = ((node.name, ", ".join(sorted(names & node.gres))) for node in found)
    raise UsageError(
        f"site {site.name}: gres: a job's systems must be on one node, and none of {place} has"
        f" {' and '.join(wanted)}: {'; '.join(f'{name} has {its}' for name, its in having if its)}"
    )


def _least(number: str) -> int:
    """Return the number in `8+`, which means eight or more."""
    return int(number.rstrip("+"))


def _gres(text: str) -> frozenset[str]:
    """Parse `cs:cs2-01:1(S:0),cs:cs2-02:1` as {cs:cs2-01, cs:cs2-02}."""
    entries = re.sub(r"\([^)]*\)", "", text).split(",")
    return frozenset(_without_count(e) for e in entries if e not in ("", "null"))


def _without_count(gres: str) -> str:
    return re.sub(r":\d+[KMGT]?$", "", gres)
