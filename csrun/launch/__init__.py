"""From a request to running tasks: plan, queue, fork server, logs, first cause."""

import importlib
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path

from csrun.errors import UsageError
from csrun.launch.interpreters import mode_of
from csrun.launch.request import JobRequest
from csrun.site import Scheduler, Site

BACKENDS: dict[Scheduler, str] = {Scheduler.LOCAL: "csrun.launch.local"}

__all__ = ["JobRequest", "launch"]


def launch(request: JobRequest, site: Site, on_checked: Callable[[], None] = lambda: None) -> int:
    """Run a job on a site's scheduler; its exit code.

    `on_checked` is called when the request has been found possible, before anything runs.

    Raises: UsageError before anything runs, when the request, the command or the site is wrong
    """
    if site.scheduler not in BACKENDS:
        known = ", ".join(BACKENDS)
        raise UsageError(
            f"site {site.name}: scheduler {site.scheduler} cannot be launched on, only: {known}"
        )
    _check_mounts(request.mount_dirs)
    _check_command(request.command)
    backend = importlib.import_module(BACKENDS[site.scheduler])
    job_plan = backend.plan_job(request, site)
    on_checked()
    code: int = backend.run(request, job_plan, site)
    return code


def _check_mounts(mount_dirs: tuple[str, ...]) -> None:
    for mount in mount_dirs:
        if not Path(mount).is_dir():
            raise UsageError(f"--mount-dirs: {mount} is not a folder")


def _check_command(command: tuple[str, ...]) -> None:
    if not command:
        raise UsageError("no command given: say what to run, e.g. csrun_wse python-ws run.py")
    if mode_of(command) is None:
        if shutil.which(command[0]) is None:
            raise UsageError(f"{shlex.quote(command[0])}: command not found")
        return
    script = command[1] if len(command) > 1 else "-"
    if not script.startswith("-") and not Path(script).exists():
        raise UsageError(f"{script}: no such file in {Path.cwd()}")
