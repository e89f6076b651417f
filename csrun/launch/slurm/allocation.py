"""A job of the user's own, by salloc or sbatch, in which csrun_wse was started.

The tasks run in it where it holds the CS system and has the nodes of the layout; srun would give
a step no more than its job has. Else the line is said that asks for all of it at once.
"""

import re
import shlex
from collections.abc import Callable, Sequence

from csrun import system
from csrun.base.errors import UsageError
from csrun.context import environment
from csrun.launch.command import named_system
from csrun.launch.plan import JobPlan
from csrun.launch.slurm.squeue import Part, parts
from csrun.launch.srun import Resources, node_needs, salloc_words
from csrun.site import Site, System


def around(
    job_id: int, job_plan: JobPlan, site: Site, resources_of: Callable[[str | None], Resources]
) -> environment.Allocation:
    """What the user's job gives a job of csrun's; `resources_of` is what one asks for by its gres.

    Raises: UsageError with the line that asks for enough, when it does not; as `squeue.jobs`
    """
    wanted, found = _systems(job_plan, site), parts(site, job_id)
    held = next((each for each in wanted if holds(found, site.gres_of(each.name))), None)
    needs = node_needs(job_plan.layout, site.nodes.cpus)
    if missing := lacks(found, needs):
        raise _refusal(job_id, missing, wanted, job_plan, site, resources_of)
    if wanted and held is None:
        names = " or ".join(each.name for each in wanted)
        raise _refusal(job_id, f"does not hold {names}", wanted, job_plan, site, resources_of)
    name = None if held is None else held.name
    return environment.Allocation(name, is_whole=len(found) == 1, is_users=True)


def holds(found: Sequence[Part], gres: str | None) -> bool:
    """Whether the first component, which is the chief's, was given a resource."""
    if gres is None:
        return True
    asked = re.sub(r"gres[:/]", "", found[0].gres if found else "").split(",")
    return re.sub(r":\d+$", "", gres) in {re.sub(r":\d+$", "", each) for each in asked}


def lacks(found: Sequence[Part], needs: Sequence[tuple[int, int]]) -> str:
    """What keeps components, or one whole job, from carrying a layout; empty when nothing does."""
    if len(found) == 1 and len(needs) > 1:
        needs = [(sum(nodes for nodes, _ in needs), max(cpus for _, cpus in needs))]
    if len(found) != len(needs):
        return f"has {len(found)} components, where the layout has {len(needs)}"
    for index, (part, (nodes, cpus)) in enumerate(zip(found, needs, strict=True)):
        where = f" in component {index}" if len(needs) > 1 else ""
        if part.nodes < nodes:
            return f"has {part.nodes} nodes{where}, where the layout has {nodes}"
        if part.cpus // part.nodes < cpus:
            return f"has {part.cpus // part.nodes} CPUs a node{where}, where the tasks need {cpus}"
    return ""


def _systems(job_plan: JobPlan, site: Site) -> Sequence[System]:
    """Those that would do; none when the job needs none."""
    mode, named = job_plan.system_mode, named_system(job_plan.command)
    if mode is None:
        return ()
    choice = system.in_mode(site, mode)
    if named is not None or len(choice) < 2:
        return (system.find(site, named, mode),)
    return choice


def _refusal(
    job_id: int,
    missing: str,
    wanted: Sequence[System],
    job_plan: JobPlan,
    site: Site,
    resources_of: Callable[[str | None], Resources],
) -> UsageError:
    gres = site.gres_of(wanted[0].name) if wanted else None
    line = shlex.join(salloc_words(job_plan.layout, resources_of(gres)))
    return UsageError(
        f"job {job_id}, in which this runs, {missing}: leave it for one that has all,\n  {line}\n"
        "or ask for another job beside it by --new-job"
    )
