"""One command on a CPU node, in csrun's software environment, with the user's terminal."""

import os
import signal
import sys
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from csrun.base.errors import UsageError
from csrun.context import JobFile, Role, TaskEntry, environment
from csrun.jobs import queue
from csrun.jobs.record import Outcome, RecordState
from csrun.jobs.registered_job import RegisteredJob, refusal_of_unwritable_state, registered
from csrun.jobs.request import JobOptions
from csrun.jobs.signals import raised_as_errors
from csrun.jobs.time_limit import EXIT_TIME_LIMIT, reached
from csrun.launch.command import check_mounts, check_program, check_working_dir, preparation_of
from csrun.launch.process.foreground import Ending, ForegroundCommand, run_in_foreground
from csrun.launch.process.output_files import OutputFiles, check_pattern
from csrun.launch.process.task_environment import slurm_variables
from csrun.launch.slurm.sinfo import require_commands
from csrun.launch.slurm.srun import cpu_words, in_container
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
    options: JobOptions


@dataclass(frozen=True)
class CpuRun:
    """A request that was found possible, and the environment that its command will have."""

    request: CpuRequest
    site: Site
    environment: dict[str, str]
    unset: tuple[str, ...]

    def shown(self, folder: Path, variable: str) -> "CpuRun":
        """The same with one more folder that the command sees, and a variable that names it."""
        mounts = (*self.request.mount_dirs, str(folder))
        return replace(
            self,
            request=replace(self.request, mount_dirs=mounts),
            environment=self.environment | {variable: str(folder)},
        )

    def run(self) -> int:
        """Reserve a node when that is asked for, and run the command; its exit code."""
        if not self.request.alloc_node:
            return run_in_foreground(
                ForegroundCommand(self.request.command, self.environment)
            ).exit_code
        if self.site.scheduler is Scheduler.SLURM:
            return run_in_foreground(ForegroundCommand(self._srun(), self.environment)).exit_code
        command, options = self.request.command, self.request.options
        registering = registered(self.site, command, options, 1, 1, keeps_logs=False)
        with raised_as_errors(), registering as job:
            outcome = self._run_on_node(job)
            job.end(outcome)
        return outcome.exit_code

    def _in_foreground(self, argv: tuple[str, ...]) -> int:
        return run_in_foreground(ForegroundCommand(argv, self.environment)).exit_code

    def _srun(self) -> tuple[str, ...]:
        request, site = self.request, self.site
        mounts = (*site.mount_dirs, *request.mount_dirs, os.getcwd())
        command = in_container(request.command, site.container, mounts)
        on_terminal = os.isatty(0) and os.isatty(1)
        return cpu_words(command, request.options, site.gres_node, on_terminal)

    def _run_on_node(self, job: RegisteredJob) -> Outcome:
        options = self.request.options
        with refusal_of_unwritable_state(self.site):
            allocation = queue.allocate(self.site, 1, job.job_id, _say, job.waits_for)
        with allocation, ExitStack() as files:
            entry = _entry(allocation.nodes[0])
            output = None
            if options.output is not None:
                opened = OutputFiles(options.output, job.job_id, job.record.name, job.record.user)
                output = files.enter_context(opened).of(entry).fileno()
            job.start(allocation.nodes)
            attended = ForegroundCommand(
                self.request.command,
                self.environment | self._of_node(job.job_id, entry),
                tuple(lock.fd for lock in (job.live, *allocation.locks)),
                output,
                options.time_limit_s,
            )
            return _outcome(run_in_foreground(attended), options.time_limit_s)

    def _of_node(self, job_id: int, entry: TaskEntry) -> dict[str, str]:
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
    if site.scheduler is Scheduler.SLURM and request.alloc_node:
        require_commands(site)
    _check_options(request)
    check_working_dir()
    check_mounts(request.mount_dirs, site)
    inherited = environment.inherited()
    dropped = {*UNSET, *_OF_A_JOB}
    variables = {name: value for name, value in inherited.items() if name not in dropped}
    variables[environment.SITE] = request.site
    variables[environment.PREPARATION] = preparation_of(request.command) or ""
    variables["PATH"] = _own_programs_first(inherited.get("PATH", os.defpath))
    check_program(request.command[0], variables["PATH"])
    return CpuRun(request, site, variables, tuple(name for name in UNSET if name in inherited))


def _check_options(request: CpuRequest) -> None:
    if request.options != JobOptions() and not request.alloc_node:
        raise UsageError(
            "--time-limit, --job-name and --output are a job's: they need --alloc-node True"
        )
    if request.options.output is not None:
        check_pattern(request.options.output)


def _entry(node: str) -> TaskEntry:
    return TaskEntry(0, Role.TASK, node, 0, 0, tuple(sorted(os.sched_getaffinity(0))))


def _outcome(ending: Ending, time_limit_s: int | None) -> Outcome:
    if ending.timed_out and time_limit_s is not None:
        _say(f"csrun_cpu: {reached(time_limit_s)}: the command was ended")
        return Outcome(RecordState.TIMEOUT, EXIT_TIME_LIMIT, reached(time_limit_s))
    if ending.asked_by is not None:
        if ending.asked_by is signal.SIGTERM:  # after a hang-up there is nobody to tell
            _say("csrun_cpu: SIGTERM: the command was ended")
        return Outcome(RecordState.CANCELLED, ending.exit_code, ending.asked_by.name)
    if ending.exit_code:
        return Outcome(RecordState.FAILED, ending.exit_code, f"exit code {ending.exit_code}")
    return Outcome(RecordState.COMPLETED, 0)


def _own_programs_first(path: str) -> str:
    return f"{Path(sys.executable).parent}{os.pathsep}{path}"


def _say(text: str) -> None:
    sys.stdout.flush()
    print(text, file=sys.stderr, flush=True)
