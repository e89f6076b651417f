"""Start of a job on a cluster: checks before it is queued; srun, sbatch or the user's own job."""

import os
import shlex
from collections.abc import Mapping
from dataclasses import replace

from csrun import system
from csrun.base.errors import UsageError
from csrun.context import environment
from csrun.jobs.request import JobRequest
from csrun.launch.job_plan import JobPlan
from csrun.launch.life.job_loop import print_line
from csrun.launch.process.foreground import ForegroundCommand, run_in_foreground
from csrun.launch.slurm import (
    allocation,
    job_comment,
    options,
    requeue,
    sbatch,
    sinfo,
    squeue,
    timed_command,
)
from csrun.launch.slurm.execution import run_step
from csrun.launch.slurm.srun_arguments import job_argv, mounts_of, python_of
from csrun.launch.srun import Resources, after_prolog, cpu_argv, in_container
from csrun.launch.user_command import UserCommand
from csrun.site import Site, System


def run(request: JobRequest, job_plan: JobPlan, site: Site) -> int:
    """Run or submit a job, and its compile before; return the exit code.

    Raises: UsageError if it can never run; CsrunError if Slurm does not answer
    """
    asked = _options(request, job_plan, site)
    around = environment.user_job() if request.new_job else None
    given = _allocation(request, job_plan, site, asked)
    systems = systems_for(job_plan, site) if given is None else given.systems
    resources = sbatch.resources_of(request, site.gres_of(*systems), site, asked)
    if given is None:
        _require_nodes(request, job_plan, site, asked, resources.gres)
        if around is not None and not request.sbatch:
            reason = allocation.reason_to_wait_for_job(
                around, job_plan.layout, site, resources.gres, asked.partitions
            )
            if reason:
                raise UsageError(
                    f"--new-job: {reason}: leave that job first (exit), or add --sbatch to queue"
                    " the new one"
                )
    else:
        sinfo.require_commands(site)
    if request.sbatch:
        return sbatch.submission(request, job_plan, site, resources, systems).submit(site)
    restarted = environment.restarted_job()
    if restarted is not None and given is not None and not given.is_users:
        line = sbatch.resume_line(request, job_plan.layout)
        requeue.await_old_steps(restarted, site, print_line, line)
        job_comment.forget(restarted)
    if request.compile_first:
        compiling, compile_plan = sbatch.compile_job(request, job_plan)
        alone = replace(resources, gres=None, job_name=compiling.name)
        if code := run_step(compiling, compile_plan, site, alone, (), given):
            return code
    return run_step(request, job_plan, site, resources, systems, given)


def _options(request: JobRequest, job_plan: JobPlan, site: Site) -> options.SlurmOptions:
    asked, roles = request.options.slurm_options, job_plan.component_roles
    return options.of(asked, site, batch=request.sbatch, roles=roles)


def _require_nodes(
    request: JobRequest,
    job_plan: JobPlan,
    site: Site,
    asked: options.SlurmOptions,
    gres: str | None,
) -> None:
    """Raises: as `sinfo.check`"""
    partitions = [environment.partition(p, batch=request.sbatch) for p in asked.partitions]
    sinfo.check(job_plan.layout, site, gres, *partitions)


def _allocation(
    request: JobRequest, job_plan: JobPlan, site: Site, asked: options.SlurmOptions
) -> environment.SlurmAllocation | None:
    """Return the existing job in which the tasks run; None if there is none.

    Raises: as `allocation.around`
    """
    given, user_job = environment.allocation(), environment.user_job()
    if given is not None or user_job is None:
        return given
    if request.sbatch or request.new_job:
        environment.unset_job_variables()
        return None
    return allocation.around(
        user_job,
        job_plan,
        site,
        lambda gres: sbatch.resources_of(request, gres, site, asked),
        asked.partitions,
    )


def in_foreground(request: JobRequest, variables: Mapping[str, str], site: Site) -> int:
    """Run one command alone on a node, on the user's terminal; return the exit code."""
    command, wanted, grace_s = request.command, request.options, None
    if wanted.time_limit_s is not None:
        grace_s = site.grace_s
        command = timed_command.timed_argv(python_of(site), wanted.time_limit_s, grace_s, command)
    command = in_container(command, site.container, mounts_of(request, site))
    command = after_prolog(command, site.prolog)
    asked = options.of(wanted.slurm_options, site, batch=False)
    resources = Resources(
        job_name=wanted.job_name,
        time_limit_s=wanted.time_limit_s,
        grace_s=grace_s,
        every=asked.every,
        first=asked.first,
    )
    on_terminal = os.isatty(0) and os.isatty(1)
    # the user has chosen the nodes of a surrounding job
    inside = environment.user_job() is not None
    elsewhere = None if inside else site.gres_node
    argv = cpu_argv(command, resources, wanted.output, elsewhere, on_terminal)
    return run_in_foreground(ForegroundCommand(argv, variables, grace_s=site.grace_s)).exit_code


def preview(request: JobRequest, job_plan: JobPlan, site: Site) -> str:
    """Return the command for Slurm, with the user's command in place of the node agents.

    Raises: UsageError, CsrunError if no system can run the job
    """
    asked = _options(request, job_plan, site)
    given = _allocation(request, job_plan, site, asked)
    systems = systems_for(job_plan, site) if given is None else given.systems
    resources = sbatch.resources_of(request, site.gres_of(*systems), site, asked)
    if request.sbatch:
        return sbatch.submission(request, job_plan, site, resources, systems).text()
    command = in_container(job_plan.command, site.container, mounts_of(request, site))
    command = after_prolog(command, site.prolog)
    return shlex.join(job_argv(job_plan, command, resources, given))


def systems_for(job_plan: JobPlan, site: Site) -> tuple[str, ...]:
    """Return the systems that a job requests, as many as its command says; none if it needs none.

    These are the named system or the one with the fewest jobs, and the least busy systems of the
    same kind.

    Raises: UsageError, CsrunError if one is unknown, in another mode, or not ACTIVE, or if the site
    has too few
    """
    mode, named = job_plan.system_mode, UserCommand(job_plan.command).system
    if mode is None:
        return ()
    choice, count = system.systems_in_mode(site, mode), UserCommand(job_plan.command).num_systems
    # otherwise Slurm need not be queried
    is_open = len(choice) > count and (named is None or count > 1)
    jobs = {each.name: each.users for each in squeue.systems(site)} if is_open else {}

    def users(_: Site, each: System) -> int:
        return jobs.get(each.name, 0)

    first = system.find(site, named, mode, users=users)
    others = system.choose_compatible(site, first, count - 1, mode, users=users)
    names = tuple(each.name for each in (first, *others))
    if is_open and named is None:
        known = ", ".join(f"{each.name} {jobs[each.name]}" for each in choice)
        reason = f"fewest jobs: {known}" if any(jobs.values()) else "all systems are idle"
        print_line(f"csrun_wse: requesting {', '.join(names)} ({reason})")
    return names
