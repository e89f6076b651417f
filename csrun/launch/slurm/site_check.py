"""Checks of a cluster: its configuration, and its idle nodes by one short job."""

import re
import secrets
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from csrun.base.errors import UsageError
from csrun.context import environment
from csrun.launch.preflight import checks
from csrun.launch.preflight.checks import CheckResult, Status
from csrun.launch.preflight.facts import NodeFacts
from csrun.launch.slurm import cluster_checks, options, sinfo
from csrun.launch.slurm.srun_arguments import python_of
from csrun.launch.srun import COMPONENT_SEPARATOR, after_prolog, in_container
from csrun.site import Site

PROBE = "csrun.launch.slurm.probe"
START_S = 60  # for Slurm to start the probes on idle nodes
ANSWER_S = 150.0
_SHOWN_LINES = 3


def check_cluster(site: Site, folder: Path) -> Iterator[CheckResult]:
    """Return the results of all checks of a cluster; folder: that of the jobs.

    Raises: UsageError without Slurm's commands; CsrunError if Slurm does not answer
    """
    nodes = sinfo.nodes(site)
    yield from cluster_checks.states(nodes, site)
    yield from cluster_checks.gres(nodes, site)
    yield cluster_checks.kill_wait(
        _kill_wait_s(sinfo.query(site, "scontrol", "show", "config")), site
    )
    asked = _by_partition(nodes, site)
    names = [node.name for its in asked.values() for node in its]
    for node in nodes:
        if node.takes_jobs and node.name not in names:
            yield CheckResult("probe", node.name, Status.SKIPPED, f"it is {node.state}, not idle")
    if names:
        yield from _of_probes(asked, names, site, folder)


def _kill_wait_s(config: str) -> int:
    found = re.search(r"^KillWait\s*=\s*(\d+)", config, re.MULTILINE)
    return int(found[1]) if found else 0


def _by_partition(nodes: Sequence[sinfo.Node], site: Site) -> dict[str | None, list[sinfo.Node]]:
    """Return the idle nodes by the first of the site's partitions that has them."""
    general = options.of([], site, batch=False).partitions[0]
    of_roles = (mapping.get("partition") for mapping in site.slurm_options_by_role.values())
    wanted = dict.fromkeys([general, *(str(name) for name in of_roles if name)])
    found: dict[str | None, list[sinfo.Node]] = {}
    for node in nodes:
        if node.takes_jobs and node.state.startswith("idle"):
            its = next((name for name in wanted if _is_in(node, name)), None)
            if its is not None or _is_in(node, None):
                found.setdefault(its, []).append(node)
    return found


def _is_in(node: sinfo.Node, partition: str | None) -> bool:
    if partition is None:
        return any(name.endswith("*") for name in node.partitions)
    return bool({partition, f"{partition}*"} & node.partitions)


def _of_probes(
    asked: dict[str | None, list[sinfo.Node]], names: list[str], site: Site, jobs_dir: Path
) -> Iterator[CheckResult]:
    folder = jobs_dir.absolute() / f".check-{secrets.token_hex(4)}"
    try:
        folder.mkdir(mode=0o700, parents=True)
    except OSError as error:
        raise UsageError(f"{folder}: {error.strerror}; set jobs_dir in the site file") from error
    try:
        found, said = _probe(asked, folder, site)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for missing in sorted(set(names) - {each.node for each in found}):
        remedy = "check that csrun is installed there, at the same path"
        yield CheckResult("probe", missing, Status.FAILED, said or "no answer", remedy)
    if found:
        yield from checks.versions(found)
    for each in sorted(found, key=lambda facts: facts.node):
        yield from checks.of_node(each, jobs_dir)
        if len(names) > 1:
            yield from checks.between(each, names)


def _probe(
    asked: dict[str | None, list[sinfo.Node]], folder: Path, site: Site
) -> tuple[list[NodeFacts], str]:
    """Return the facts of the nodes, and srun's error messages."""
    try:
        done = subprocess.run(
            probe_argv(asked, folder, site),
            env=environment.for_srun(),
            capture_output=True,
            text=True,
            check=False,
            timeout=ANSWER_S,
        )
    except subprocess.TimeoutExpired:
        return [], f"no answer in {ANSWER_S:g} s"
    found = [
        msgspec.json.decode(line, type=NodeFacts)
        for line in done.stdout.splitlines()
        if line.startswith("{")
    ]
    errors = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    return found, "; ".join(errors[:_SHOWN_LINES])


def probe_argv(
    asked: dict[str | None, list[sinfo.Node]], folder: Path, site: Site
) -> tuple[str, ...]:
    """Return the srun arguments of the probes: one component per partition."""
    general = options.of([], site, batch=False).every
    common = [argument for argument in general if not argument.startswith("--partition=")]
    argv = ["srun"]
    for partition, nodes in asked.items():
        argv += [COMPONENT_SEPARATOR] if len(argv) > 1 else [f"--immediate={START_S}"]
        argv += [
            "--job-name=csrun-site-check",
            "--time=3",
            *common,
            *([f"--partition={partition}"] if partition else []),
            f"--nodes={len(nodes)}",
            "--ntasks-per-node=1",
            f"--nodelist={','.join(node.name for node in nodes)}",
        ]
    count = sum(map(len, asked.values()))
    probe = (python_of(site), "-P", "-m", PROBE, str(folder), str(count))
    command = in_container(probe, site.container, (*site.mount_dirs, str(folder.parent)))
    return (*argv, *after_prolog(command, site.prolog))
