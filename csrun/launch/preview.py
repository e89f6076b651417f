"""Dry run of a job: its tasks, its srun command, and its demands on this machine."""

from collections import Counter
from collections.abc import Iterable

import msgspec
import psutil

from csrun.context import Role, TaskEntry
from csrun.jobs.queue import node_names
from csrun.launch.job_plan import JobPlan, PlannedTask
from csrun.launch.task_memory import PRIVATE_BYTES, SHARED_BYTES
from csrun.site import Site


class Sharing(msgspec.Struct, frozen=True):
    """Resources that the job requests, and those of the machine.

    tasks_per_cpu: maximum number of tasks that share a real CPU.
    memory_mb: estimate without the model and its data; None if the command is not one of csrun's
        interpreters.
    """

    nominal_cpus: int
    real_cpus: int
    tasks_per_cpu: int
    memory_mb: int | None
    memory_available_mb: int


class DryRun(msgspec.Struct, frozen=True):
    """Plan of a job that is not run, on the nodes of an idle site.

    srun: its srun command, or for sbatch the script.
    sharing: None if the nodes are not on this machine.
    """

    site: str
    mode: str | None
    command: tuple[str, ...]
    nodes: int
    tasks: tuple[TaskEntry, ...]
    srun: str
    sharing: Sharing | None


def describe(job_plan: JobPlan, site: Site, srun: str, sharing: Sharing | None) -> DryRun:
    """Describe the plan with the details that a user or a program needs before it runs."""
    return DryRun(
        site=site.name,
        mode=job_plan.mode,
        command=job_plan.command,
        nodes=job_plan.layout.nodes,
        tasks=job_plan.entries(node_names(site)),
        srun=srun,
        sharing=sharing,
    )


def sharing_of(job_plan: JobPlan, site: Site) -> Sharing:
    """Return the demands of a job on this machine, which simulates all nodes of the site."""
    layout, tasks = job_plan.layout, job_plan.tasks
    alone = layout.single_task_nodes
    load = Counter(cpu for task in tasks for cpu in task.cpus)
    return Sharing(
        nominal_cpus=alone * site.nodes.cpus + (len(tasks) - alone) * layout.cpus_per_task,
        real_cpus=len(load),
        tasks_per_cpu=max(load.values()),
        memory_mb=_memory_mb(tasks),
        memory_available_mb=psutil.virtual_memory().available >> 20,
    )


def _memory_mb(tasks: Iterable[PlannedTask]) -> int | None:
    roles = [task.role for task in tasks]
    if Role.TASK in roles:
        return None
    private = sum(PRIVATE_BYTES[role] for role in (*roles, Role.WAFER))
    return (SHARED_BYTES + private) >> 20
