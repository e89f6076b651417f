"""One command on a CPU node, in csrun's software environment, with the user's terminal."""

import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from csrun.context import JobFile, Role, TaskEntry, environment
from csrun.errors import UsageError
from csrun.launch import queue
from csrun.launch.attended import Attended, run_attended
from csrun.launch.checks import check_mounts, check_program
from csrun.launch.environment import slurm_variables
from csrun.site import Scheduler, Site

# Another software environment's, which would get in the way of ours.
UNSET = ("PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "LD_LIBRARY_PATH", "LD_PRELOAD")
# A job's around us, which this command is no task of.
_OF_A_JOB = (environment.JOB_DIR, environment.WAFER)


@dataclass(frozen=True)
class CpuRequest:
    """One csrun_cpu command line; `site` is a shipped site's name or an absolute path."""

    command: tuple[str, ...]
    alloc_node: bool
    mount_dirs: tuple[str, ...]
    site: str


@dataclass(frozen=True)
class CpuRun:
    """A request that was found possible, and the environment that its command will have."""

    request: CpuRequest
    site: Site
    environment: Mapping[str, str]
    unset: tuple[str, ...]

    def run(self) -> int:
        """Reserve a node when that is asked for, and run the command; its exit code."""
        with ExitStack() as held:
            variables = dict(self.environment)
            kept: tuple[int, ...] = ()
            if self.request.alloc_node:
                job_id = queue.next_job_id(self.site)
                allocation = held.enter_context(queue.allocate(self.site, 1, job_id, _say))
                variables |= self._of_node(job_id, allocation.nodes[0])
                kept = tuple(lock.fd for lock in allocation.locks)
            return run_attended(Attended(self.request.command, variables, kept))

    def _of_node(self, job_id: int, node: str) -> dict[str, str]:
        cpus = tuple(sorted(os.sched_getaffinity(0)))
        entry = TaskEntry(0, Role.TASK, node, 0, 0, cpus)
        job = JobFile(
            job_id=job_id,
            mode=None,
            command=self.request.command,
            working_dir=str(Path.cwd()),
            site=self.request.site,
            nodes=1,
            cpus_per_task=self.site.nodes.cpus,
            tasks=(entry,),
        )
        return slurm_variables(job, entry)


def prepare(request: CpuRequest, site: Site) -> CpuRun:
    """Check a request, and make the environment of its command.

    Raises: UsageError when the request, the command or the site is wrong
    """
    if not request.command:
        raise UsageError("no command given: say what to run, e.g. csrun_cpu bash")
    if site.scheduler is not Scheduler.LOCAL:
        raise UsageError(
            f"site {site.name}: scheduler {site.scheduler} cannot be launched on, only:"
            f" {Scheduler.LOCAL}"
        )
    check_mounts(request.mount_dirs, site)
    inherited = environment.inherited()
    dropped = {*UNSET, *_OF_A_JOB}
    variables = {name: value for name, value in inherited.items() if name not in dropped}
    variables[environment.SITE] = request.site
    variables["PATH"] = _own_programs_first(inherited.get("PATH", os.defpath))
    check_program(request.command[0], variables["PATH"])
    return CpuRun(request, site, variables, tuple(name for name in UNSET if name in inherited))


def _own_programs_first(path: str) -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{path}"


def _say(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
