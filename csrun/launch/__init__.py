"""From a request to running tasks on the site's scheduler: plan, processes, first cause of a
failure.
"""

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from csrun.jobs.request import JobOptions, JobRequest
from csrun.launch.command_checks import (
    check_command,
    check_mounts,
    check_working_dir,
    require_command,
)
from csrun.launch.piped_params import read_piped_params
from csrun.launch.process.output_files import check_pattern
from csrun.launch.script_arguments import check_arguments
from csrun.launch.script_imports import (
    interpreter_hint,
    preloaded,
    require_packages,
    version_hint,
)
from csrun.launch.user_command import UserCommand
from csrun.site import Scheduler, Site

if TYPE_CHECKING:
    from csrun.launch.backend import Backend
    from csrun.launch.job_plan import JobPlan
    from csrun.launch.preview import DryRun

# Modules, not classes: a command only imports the backend of its site.
BACKENDS: dict[Scheduler, str] = {
    Scheduler.LOCAL: "csrun.launch.local",
    Scheduler.SLURM: "csrun.launch.slurm.backend",
}

__all__ = ["JobOptions", "JobRequest", "backend_of", "check", "dry_run", "launch"]


def backend_of(site: Site) -> "Backend":
    """Return the backend of a site's scheduler."""
    found: Backend = importlib.import_module(BACKENDS[site.scheduler]).BACKEND(site)
    return found


def launch(request: JobRequest, site: Site, on_checked: Callable[[], None] = lambda: None) -> int:
    """Run a job on a site's scheduler and return its exit code.

    on_checked: called after all checks of the request, before anything runs.

    Raises: UsageError before anything runs, if the request, the command or the site is wrong
    """
    backend, job_plan = check(request, site)
    command = UserCommand(request.command).without_options()
    request = replace(read_piped_params(request), preload=preloaded(command, request.preload))
    on_checked()
    for hint in filter(None, (version_hint(command), interpreter_hint(command))):
        print(f"csrun: {hint}", file=sys.stderr, flush=True)
    return backend.run(request, job_plan)


def dry_run(request: JobRequest, site: Site) -> "DryRun":
    """Return the plan that `launch` would run.

    Raises: UsageError if the request, the command or the site is wrong
    """
    backend, job_plan = check(request, site)
    return backend.preview(request, job_plan)


def check(request: JobRequest, site: Site) -> "tuple[Backend, JobPlan]":
    """Return the backend of the site, and the job's plan on it.

    Raises: UsageError if the request, the command or the site is wrong
    """
    require_command(request.command, "csrun_wse python-ws run.py")
    check_working_dir()
    check_mounts(request.mount_dirs, site)
    command = UserCommand(request.command).without_options()
    check_command(command)
    if site.container is None:  # the image has its own Python
        require_packages(command)
        check_arguments(command)
    if request.options.output is not None:
        check_pattern(request.options.output)
    backend = backend_of(site)
    return backend, backend.plan(request)
