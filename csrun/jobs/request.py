"""Requests of the launcher commands."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from csrun.base.python_options import split_options
from csrun.site import DEFAULT_SITE


@dataclass(frozen=True)
class JobOptions:
    """Options of any job.

    output: pattern of file names (see `csrun.launch.process.output_files`).
    labels: as in `csrun.jobs.job_labels`.
    slurm_options: Slurm's options, each `NAME` or `NAME=VALUE`; other schedulers refuse them.
    """

    job_name: str | None = None
    time_limit_s: int | None = None
    output: str | None = None
    slurm_options: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobRequest:
    """One csrun_wse command line; None for an option that was not given.

    site: shipped site's name or absolute path, by which the tasks load their site.
    preload: modules that tasks of csrun's interpreters need; imported once, before the fork.
    label: print every task's output, each line prefixed with the rank.
    sbatch: on a cluster, submit the job instead of waiting for it.
    compile_first: on a cluster, compile in a separate job that holds no CS system.
    foreground: environment of a command with a node for itself and the user's terminal, for
        csrun_cpu; None for a job of tasks.
    detach: continue a job on this machine without its terminal.
    max_restarts: maximum number of restarts of the tasks after a failure.
    new_job: request a new Slurm job instead of using the surrounding one.
    params: text of a params file that was a pipe.
    num_wgt_servers: number of MemoryX tasks in weight streaming, which the command may set, too.
    """

    command: tuple[str, ...]
    total_nodes: int | None = None
    tasks_per_node: int | None = None
    cpus_per_task: int | None = None
    single_task_nodes: int | None = None
    cyclic: bool = False
    mount_dirs: tuple[str, ...] = ()
    site: str = DEFAULT_SITE
    preload: tuple[str, ...] = ()
    label: bool = False
    sbatch: bool = False
    compile_first: bool = False
    options: JobOptions = JobOptions()
    foreground: Mapping[str, str] | None = None
    detach: bool = False
    max_restarts: int = 0
    new_job: bool = False
    params: bytes | None = None
    num_wgt_servers: int | None = None

    @property
    def name(self) -> str:
        """Name of the job: as requested, else that of its script or program."""
        return self.options.job_name or name_of(self.command)


_COMPILES = frozenset({"--compile_only", "--validate_only", "compile_only", "validate_only"})


def type_of(command: tuple[str, ...]) -> str:
    """Return the type of a job by its command: compile or execute; empty if unknown."""
    if not command:
        return ""
    return (
        "compile"
        if any(argument.removeprefix("--mode=") in _COMPILES for argument in command)
        else "execute"
    )


def name_of(command: tuple[str, ...]) -> str:
    """Return the script or module of a Python command line, or the program of another one."""
    program = Path(command[0]).name
    if not program.startswith("python"):
        return program
    _, arguments = split_options(command[1:])
    if arguments[:1] == ("-m",):
        return arguments[1] if len(arguments) > 1 else program
    return program if not arguments or arguments[0].startswith("-") else Path(arguments[0]).name
