"""User's own Slurm job, from salloc or sbatch, in which csrun_wse was started.

Tasks run inside it if it has the CS systems and the nodes of the layout, because srun cannot give a
step more than its job has. Otherwise the error shows a command that requests everything at once.
"""

import re
import shlex
from collections.abc import Callable, Sequence

from csrun import system
from csrun.base.errors import UsageError
from csrun.context import environment
from csrun.launch.job_plan import JobPlan
from csrun.launch.slurm import sinfo, squeue
from csrun.launch.slurm.squeue import JobComponent, parts
from csrun.launch.srun import Resources, node_needs, salloc_argv
from csrun.launch.user_command import UserCommand
from csrun.site import JobLayout, Site, System


def around(
    job_id: int,
    job_plan: JobPlan,
    site: Site,
    resources_of: Callable[[str | None], Resources],
    partitions: Sequence[str | None] = (None,),
) -> environment.SlurmAllocation:
    """Return the resources of the user's job for a job of csrun's; `resources_of` maps a gres.

    Raises: UsageError with a command that requests enough, if they do not suffice; as `squeue.jobs`
    """
    ways, found = _ways(job_plan, site), parts(site, job_id)
    count = UserCommand(job_plan.command).num_systems
    held = next(filter(None, (_held(way, count, found, site) for way in ways)), ())
    missing = lacks(found, node_needs(job_plan.layout, site.nodes.cpus))
    if ways and not held and not missing:
        missing = f"does not hold {_named(ways, count)}"
    if missing:
        gres = site.gres_of(*(each.name for way in ways[:1] for each in way[:count]))
        line = shlex.join(salloc_argv(job_plan.layout, resources_of(gres)))
        stuck = reason_to_wait_for_job(job_id, job_plan.layout, site, gres, partitions)
        other = "" if stuck else "\nor add --new-job to submit a separate job"
        raise UsageError(
            f"the current job {job_id} {missing}: leave it and request one that fits,\n"
            f"  {line}{other}"
        )
    return environment.SlurmAllocation(held, is_whole=len(found) == 1, is_users=True)


def reason_to_wait_for_job(
    job_id: int,
    layout: JobLayout,
    site: Site,
    gres: str | None,
    partitions: Sequence[str | None] = (None,),
) -> str:
    """Return why a new job could only start after the surrounding job; empty if it need not wait.

    Raises: UsageError for a job that could not even run on an idle cluster, and as `squeue.jobs`
    """
    own = squeue.node_names(squeue.job(site, job_id), site)
    every = sinfo.nodes(site)
    sinfo.check_on(every, layout, site, gres, *partitions)
    try:
        others = tuple(node for node in every if node.name not in own)
        sinfo.check_on(others, layout, site, gres, *partitions)
    except UsageError:
        having = [node for node in sinfo.nodes_with(every, gres) if node.name in own]
        if gres is not None and having:
            names = ", ".join(each.name for each in site.systems if _has(each, gres, site))
            verb = "have" if len(having) > 1 else "has"
            listed = ", ".join(node.name for node in having)
            return f"{listed}, which {verb} {names or gres}, is held by the current job {job_id}"
        return f"{', '.join(sorted(own))}, which it needs, is held by the current job {job_id}"
    return ""


def _has(each: System, gres: str, site: Site) -> bool:
    return site.gres_names_systems and (site.gres_of(each.name) or "") in gres.split(",")


def holds(found: Sequence[JobComponent], gres: str | None) -> bool:
    """True if the first component, the chief's, has a resource."""
    if gres is None:
        return True
    asked = re.sub(r"gres[:/]", "", found[0].gres if found else "").split(",")
    return re.sub(r":\d+$", "", gres) in {re.sub(r":\d+$", "", each) for each in asked}


def lacks(found: Sequence[JobComponent], needs: Sequence[tuple[int, int]]) -> str:
    """Return why components, or one job without components, are too small for a layout; else
    empty.
    """
    if len(found) == 1 and len(needs) > 1:
        needs = [(sum(nodes for nodes, _ in needs), max(cpus for _, cpus in needs))]
    if len(found) != len(needs):
        return f"has {len(found)} components, the layout needs {len(needs)}"
    for index, (part, (nodes, cpus)) in enumerate(zip(found, needs, strict=True)):
        where = f" in component {index}" if len(needs) > 1 else ""
        if part.nodes < nodes:
            return f"has {part.nodes} nodes{where}, the layout needs {nodes}"
        if part.cpus // part.nodes < cpus:
            return f"has {part.cpus // part.nodes} CPUs per node{where}, the tasks need {cpus}"
    return ""


def _ways(job_plan: JobPlan, site: Site) -> list[tuple[System, ...]]:
    """Return each possible first system of a job, followed by the systems that can share the run;
    none if the job needs no system.

    Raises: UsageError, CsrunError as `run.systems_for`
    """
    mode, named = job_plan.system_mode, UserCommand(job_plan.command).system
    if mode is None:
        return []
    choice = system.systems_in_mode(site, mode)
    firsts = choice if named is None and len(choice) > 1 else [system.find(site, named, mode)]
    others = UserCommand(job_plan.command).num_systems - 1
    system.choose_compatible(
        site, firsts[0], others, mode, users=lambda *_: 0
    )  # the required number
    return [(first, *system.compatible_systems(site, first, mode)) for first in firsts]


def _held(
    way: Sequence[System], count: int, found: Sequence[JobComponent], site: Site
) -> tuple[str, ...]:
    """Return the first system and as many others as are needed; none if the job lacks them."""
    held = [each for each in way if holds(found, site.gres_of(each.name))][:count]
    return tuple(each.name for each in held) if held[:1] == [way[0]] and len(held) == count else ()


def _named(ways: Sequence[Sequence[System]], count: int) -> str:
    if count == 1:
        return " or ".join(first.name for first, *_ in ways)
    first, *others = (each.name for each in ways[0])
    if len(ways) == 1:
        return f"{first} and {count - 1} of {', '.join(others)}"
    return f"{count} of {', '.join([first, *others])}"
