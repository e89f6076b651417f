"""The context of this process: which task of which job it is, if any."""

import os
import sys
import traceback
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import msgspec

from csrun.base.errors import PeerLost
from csrun.base.mode import ExecutionMode
from csrun.context import environment
from csrun.context.job import SECRET_FILE, Host, Hosts, JobFile, Role, TaskEntry, read_secret
from csrun.context.link import JobLink, report_of


class Terminated(BaseException):
    """SIGTERM arrived: stop in order, as for a KeyboardInterrupt.

    The launcher's task wrapper raises it, once, in the main thread of every Python task. Code that
    has something to finish or to discard does so in `finally` or on this exception, within the
    launcher's grace period, and lets it pass; the task then ends with exit code 143.
    """


class TaskContext(msgspec.Struct, frozen=True):
    """One task's view of its job. `wafer` names the CS system whose wafer this process is, if any;
    a wafer has the rank of the chief that asked for it.
    """

    job_dir: Path
    job: JobFile
    entry: TaskEntry
    wafer: str | None = None

    @property
    def rank(self) -> int:
        """Global rank, 0 for the chief."""
        return self.entry.rank

    @property
    def role(self) -> Role:
        return self.entry.role

    @property
    def mode(self) -> ExecutionMode | None:
        """The execution mode that the job's interpreter needs."""
        return self.job.mode

    @property
    def streamers(self) -> tuple[int, ...]:
        """Ranks of the streamers, in order; a single pipelined task streams to itself."""
        ranks = tuple(t.rank for t in self.job.tasks if t.role is Role.STREAMER)
        return ranks or (0,)

    @property
    def memoryx(self) -> int:
        """Number of MemoryX tasks of the job: of weight streaming one or more."""
        return sum(task.role is Role.MEMORYX for task in self.job.tasks)

    @property
    def swarmx(self) -> tuple[int, ...]:
        """Ranks of the SwarmX tasks, if the job has any."""
        return tuple(task.rank for task in self.job.tasks if task.role is Role.SWARMX)

    @property
    def streaming_cpus(self) -> tuple[int, ...]:
        """CPUs that this streamer may use: its own, or, where streamers of the job have one in
        common, on those of all of them.
        """
        if self.job.hosts is not Hosts.SHARED:
            return self.entry.cpus
        taken = [cpu for t in self.job.tasks if t.role is Role.STREAMER for cpu in t.cpus]
        every = sorted(set(taken))
        return self.entry.cpus if len(every) == len(taken) else tuple(every)

    @property
    def host(self) -> Host | None:
        """The machine that this task runs on; None where all tasks of the job share one."""
        if self.job.hosts is Hosts.SHARED:
            return None
        return Host(self.entry.node, self.entry.address)

    @property
    def telemetry_dir(self) -> Path:
        """The folder where this task's run says how far it is."""
        return self.job.telemetry_dir(self.job_dir)

    @property
    def secret(self) -> bytes:
        """The job's shared secret, by which its tasks know each other.

        Raises: CsrunError for one that another account can have written, or read
        """
        return read_secret(self.job_dir / SECRET_FILE)

    @property
    def report_name(self) -> str:
        """The name of this task's report file."""
        return str(self.rank) if self.wafer is None else f"wafer-{self.wafer}"

    def link(self) -> JobLink:
        """A connection to this job's launcher."""
        return JobLink(self.job_dir, self.rank, self.entry.node_id)


@lru_cache(maxsize=1)
def current() -> TaskContext | None:
    """This process's task, or None when no csrun launcher is around it.

    Source: the launcher sets CSRUN_JOB_DIR; both launchers set SLURM_PROCID, the rank.
    """
    job_dir = os.environ.get(environment.JOB_DIR)
    if not job_dir:
        return None
    job = JobFile.read(Path(job_dir))
    entry = job.tasks[int(os.environ[environment.RANK])]
    wafer = os.environ.get(environment.WAFER)
    if wafer is not None:
        entry = msgspec.structs.replace(entry, role=Role.WAFER)
    return TaskContext(Path(job_dir), job, entry, wafer)


def report_before_closing(error: BaseException | None) -> None:
    """Report an error that is about to close this task's connections, if it is in a job.

    Its peers fail as soon as the connections close, and the launcher must find the cause by then.
    The report at the task's exit replaces this one.
    """
    context = current()
    if context is None or not isinstance(error, Exception) or isinstance(error, PeerLost):
        return
    text = "".join(traceback.format_exception(error))
    with suppress(OSError):  # on a full disk the report at the exit fails as well, and says so
        report_of(context.rank, error, text).write(context.job_dir, context.report_name)


_NAME = "csrun_mode"


def interpreter_options(mode: ExecutionMode) -> tuple[str, str]:
    """Options that make Python the interpreter of a mode."""
    return "-X", f"{_NAME}={mode}"


def interpreter_mode() -> ExecutionMode:
    """The mode of this interpreter; plain Python's is PIPELINED."""
    return ExecutionMode(sys._xoptions.get(_NAME, ExecutionMode.PIPELINED))
