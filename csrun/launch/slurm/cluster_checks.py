"""Checks of slurm.conf against the site file; each is a function from both to results. Pure."""

from collections.abc import Iterator

from csrun.launch.preflight.checks import ALL_NODES, CheckResult, judge
from csrun.launch.slurm.sinfo import Node, nodes_with
from csrun.site import Site


def gres(found: tuple[Node, ...], site: Site) -> Iterator[CheckResult]:
    """Check that slurm.conf has each CS system of the site as a resource of a node."""
    for system in site.systems:
        wanted = site.gres_of(system.name)
        having = nodes_with(found, wanted)
        result = f"{wanted} on {', '.join(n.name for n in having)}" if having else f"no {wanted}"
        remedy = f"add Gres={wanted} to a node of slurm.conf and gres.conf, or change gres"
        names = ",".join(node.name for node in having) or ALL_NODES
        yield judge(f"gres of {system.name}", names, bool(having), result, remedy)


def kill_wait(kill_wait_s: int, site: Site) -> CheckResult:
    """Check that Slurm's KillWait is at least csrun's grace period."""
    result = f"KillWait {kill_wait_s} s, grace_s {site.grace_s:g} s"
    remedy = f"set KillWait={int(site.grace_s)} in slurm.conf, or grace_s to {kill_wait_s}"
    return judge("KillWait", ALL_NODES, kill_wait_s >= site.grace_s, result, remedy)


def states(found: tuple[Node, ...], site: Site) -> Iterator[CheckResult]:
    """Check that nodes are in service, and have as many CPUs as the site file says."""
    for node in found:
        remedy = f"scontrol update NodeName={node.name} State=resume"
        yield judge("state", node.name, node.takes_jobs, node.state, remedy)
        result = f"{node.cpus} CPUs, nodes.cpus is {site.nodes.cpus}"
        remedy = f"set nodes.cpus to {node.cpus}"
        yield judge("CPUs", node.name, node.cpus >= site.nodes.cpus, result, remedy)
    count = f"{len(found)} nodes, nodes.count is {site.nodes.count}"
    good, remedy = len(found) == site.nodes.count, f"set nodes.count to {len(found)}"
    yield judge("nodes", ALL_NODES, good, count, remedy)
