"""From a request to running tasks: plan, queue, fork server, logs, first cause."""

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from csrun.base.errors import UsageError
from csrun.jobs.request import JobOptions, JobRequest
from csrun.launch.command import check_command, check_mounts, check_working_dir
from csrun.launch.plan import JobPlan
from csrun.launch.process.output_files import check_pattern
from csrun.site import Scheduler, Site

if TYPE_CHECKING:
    from csrun.launch.preview import DryRun

BACKENDS: dict[Scheduler, str] = {
    Scheduler.LOCAL: "csrun.launch.local",
    Scheduler.SLURM: "csrun.launch.slurm.run",
}

__all__ = ["JobOptions", "JobRequest", "dry_run", "launch"]


def launch(request: JobRequest, site: Site, on_checked: Callable[[], None] = lambda: None) -> int:
    """Run a job on a site's scheduler; its exit code.

    `on_checked` is called when the request has been found possible, before anything runs.

    Raises: UsageError before anything runs, when the request, the command or the site is wrong
    """
    backend, job_plan = _checked(request, site)
    on_checked()
    code: int = backend.run(request, job_plan, site)
    return code


def dry_run(request: JobRequest, site: Site) -> "DryRun":
    """What `launch` would run.

    Raises: UsageError when the request, the command or the site is wrong
    """
    from csrun.launch.preview import describe

    _, job_plan = _checked(request, site)
    return describe(request, job_plan, site)


def _checked(request: JobRequest, site: Site) -> tuple[Any, JobPlan]:
    """The backend of the site, and the job laid out on it."""
    for option, is_given in (("sbatch", request.sbatch), ("compile-first", request.compile_first)):
        if is_given and site.scheduler is not Scheduler.SLURM:
            raise UsageError(
                f"--{option} needs a site whose scheduler is {Scheduler.SLURM}, that of site"
                f" {site.name} is {site.scheduler}: leave it out, or choose another --site"
            )
    if not request.command:
        raise UsageError("no command given: say what to run, e.g. csrun_wse python-ws run.py")
    check_working_dir()
    check_mounts(request.mount_dirs, site)
    check_command(request.command)
    if request.options.output is not None:
        check_pattern(request.options.output)
    backend = importlib.import_module(BACKENDS[site.scheduler])
    return backend, backend.plan_job(request, site)
