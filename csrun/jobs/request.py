"""Requests to the launchers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from csrun.base.python_options import split_options
from csrun.site import DEFAULT_SITE


@dataclass(frozen=True)
class JobOptions:
    """Options of any job; `output` is a pattern of file names (see `output`), `labels` as in
    `csrun.jobs.job_labels`.

    `slurm_options` are Slurm's own, each `NAME` or `NAME=VALUE`; other schedulers refuse them.
    """

    job_name: str | None = None
    time_limit_s: int | None = None
    output: str | None = None
    slurm_options: tuple[str, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class JobRequest:
    """One csrun_wse command line; None where an option was not given.

    `site` is what the tasks load their site by: a shipped site's name or an absolute path.
    `preload` names modules that the tasks of csrun's interpreters will want: imported once, before
    they are forked. `label` shows every task's output, each line with its rank before it. On a
    cluster, `sbatch` submits the job instead of waiting for it, and `compile_first` compiles it in
    a job of its own that holds no CS system. `foreground` is the environment of a command that has
    a node to itself and the user's terminal, as csrun_cpu's; None for a job of tasks.
    `detach` lets a job of this machine go on without its terminal. `max_restarts` is how often the
    tasks start again after a failure. `new_job` asks a cluster for a job besides the one that
    csrun_wse runs in. `params` is the text of a params file that was a pipe. `num_wgt_servers` is
    how many MemoryX tasks weight streaming has; the command may say it, too.
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
    """Type of a job by its command: compile or execute; empty for an unknown command."""
    if not command:
        return ""
    return (
        "compile"
        if any(word.removeprefix("--mode=") in _COMPILES for word in command)
        else "execute"
    )


def name_of(command: tuple[str, ...]) -> str:
    """The script or module of a Python's command line, the program of any other."""
    program = Path(command[0]).name
    if not program.startswith("python"):
        return program
    _, words = split_options(command[1:])
    if words[:1] == ("-m",):
        return words[1] if len(words) > 1 else program
    return program if not words or words[0].startswith("-") else Path(words[0]).name
