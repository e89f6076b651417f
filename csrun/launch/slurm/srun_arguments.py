"""Arguments of a job's srun: with the user's command, or with that of the node agents."""

import os
import sys
from dataclasses import replace

from csrun.context import environment
from csrun.jobs.folder import JobFolder, published_jobs_dir
from csrun.jobs.request import JobRequest
from csrun.launch.job_plan import JobPlan
from csrun.launch.process.preload import ALWAYS
from csrun.launch.srun import Resources, after_prolog, in_container, srun_argv, step_argv
from csrun.site import Site

NODE_AGENT = "csrun.launch.slurm.node_agent"


def job_argv(
    job_plan: JobPlan,
    command: tuple[str, ...],
    resources: Resources,
    given: environment.SlurmAllocation | None,
) -> tuple[str, ...]:
    """Return the srun of a command on all of a job's nodes, in an existing job or a new one."""
    if given is None:
        return srun_argv(job_plan.layout, command, resources)
    return step_argv(job_plan.layout, command, resources, is_whole=given.is_whole)


def one_a_node(job_plan: JobPlan) -> JobPlan:
    """Return the options for one process per node, with the CPUs of all tasks there."""
    layout = job_plan.layout
    cpus = layout.tasks_per_node * layout.cpus_per_task
    whole = replace(layout, tasks_per_node=1, cpus_per_task=cpus, cyclic=False)
    return replace(job_plan, layout=whole)


def node_agent_argv(
    request: JobRequest, job_plan: JobPlan, site: Site, folder: JobFolder
) -> tuple[str, ...]:
    """Return the command of a node agent."""
    modules = () if job_plan.mode is None else (*ALWAYS, *request.preload)
    agent = (python_of(site), "-P", "-m", NODE_AGENT, str(folder.path), ",".join(modules))
    boards = [str(published_jobs_dir(site))] if site.shared else []
    mounts = (*mounts_of(request, site), str(folder.path.parent), *boards)
    command = in_container(agent, site.container, mounts)
    return after_prolog(command, site.prolog)


def python_of(site: Site) -> str:
    """Return the Python that has csrun: the image's, or ours."""
    return "python" if site.container else sys.executable


def mounts_of(request: JobRequest, site: Site) -> tuple[str, ...]:
    """Return the folders to mount into a container, if there is one."""
    return (*site.mount_dirs, *request.mount_dirs, os.getcwd())
