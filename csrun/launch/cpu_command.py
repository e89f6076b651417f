"""csrun_cpu: one command on a CPU node, in csrun's software environment, on the user's terminal."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.context import environment
from csrun.jobs.request import JobOptions, JobRequest
from csrun.launch import backend_of
from csrun.launch.command_checks import (
    check_mounts,
    check_program,
    check_script,
    check_working_dir,
    require_command,
)
from csrun.launch.process.foreground import ForegroundCommand, run_in_foreground
from csrun.launch.process.output_files import check_pattern
from csrun.launch.user_command import UserCommand
from csrun.site import Site

# another software environment's variables, which would conflict with ours
UNSET = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "LD_LIBRARY_PATH", "LD_PRELOAD")
# variables of a surrounding job, of which this command is not a task
_OF_A_JOB = (environment.JOB_DIR, environment.WAFER)


@dataclass(frozen=True)
class CpuRequest:
    """One csrun_cpu command line; `site` is a shipped site's name or an absolute path."""

    command: tuple[str, ...]
    alloc_node: bool
    mount_dirs: tuple[str, ...]
    site: str
    options: JobOptions


@dataclass(frozen=True)
class CpuRun:
    """A checked request, and the environment of its command."""

    request: CpuRequest
    site: Site
    environment: dict[str, str]
    unset: tuple[str, ...]

    def with_folder(self, folder: Path, variable: str) -> "CpuRun":
        """Return the run with one more mounted folder, and a variable with its path."""
        mounts = (*self.request.mount_dirs, str(folder))
        return replace(
            self,
            request=replace(self.request, mount_dirs=mounts),
            environment=self.environment | {variable: str(folder)},
        )

    def run(self) -> int:
        """Reserve a node if requested, run the command and return its exit code."""
        request = self.request
        if not request.alloc_node:
            grace_s = self.site.grace_s
            command = ForegroundCommand(request.command, self.environment, grace_s=grace_s)
            return run_in_foreground(command).exit_code
        backend, job = backend_of(self.site), _job(request, self.environment)
        return backend.run(job, backend.plan(job))


def prepare(request: CpuRequest, site: Site) -> CpuRun:
    """Check a request, and build the environment of its command.

    Raises: UsageError if the request, the command or the site is wrong
    """
    require_command(request.command, "csrun_cpu bash")
    if request.alloc_node:
        backend_of(site).plan(_job(request, {}))  # a missing scheduler is reported first
    _check_options(request)
    check_working_dir()
    check_mounts(request.mount_dirs, site)
    inherited = environment.inherited()
    dropped = {*UNSET, *_OF_A_JOB}
    variables = {name: value for name, value in inherited.items() if name not in dropped}
    variables[environment.SITE] = request.site
    variables[environment.PREPARATION] = UserCommand(request.command).preparation or ""
    variables |= _defaults(site)
    variables["PATH"] = _own_programs_first(inherited.get("PATH", os.defpath))
    check_program(request.command[0], variables["PATH"])
    check_script(UserCommand(request.command))
    return CpuRun(request, site, variables, tuple(name for name in UNSET if name in inherited))


def _check_options(request: CpuRequest) -> None:
    if request.options != JobOptions() and not request.alloc_node:
        raise UsageError(
            "--time-limit, --job-name, --output and --slurm-option apply to a job only: add"
            " --alloc-node True"
        )
    if request.options.output is not None:
        check_pattern(request.options.output)


def _job(request: CpuRequest, variables: Mapping[str, str]) -> JobRequest:
    return JobRequest(
        request.command,
        mount_dirs=request.mount_dirs,
        site=request.site,
        options=request.options,
        foreground=variables,
    )


def _defaults(site: Site) -> dict[str, str]:
    """Return the site's default layout as variables, which the original also sets for scripts."""
    return {
        "DEF_NODES": str(site.defaults.nodes),
        "DEF_TASKS": str(site.defaults.tasks_per_node),
        "DEF_CPUS": str(site.defaults.cpus_per_task),
    }


def _own_programs_first(path: str) -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{path}"
