"""Context of this process: its job and task, if it is one."""

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
from csrun.context.launcher_link import JobLink, report_of


class Terminated(BaseException):
    """SIGTERM arrived: clean up and end, as for a KeyboardInterrupt.

    The launcher's task wrapper raises it once, in the main thread of every Python task. Code with
    something to finish or discard does so in `finally`, or on this exception, within the grace
    period, and lets the exception propagate. The task then ends with exit code 143.
    """


class TaskContext(msgspec.Struct, frozen=True):
    """One task's view of its job.

    wafer: name of the CS system if this process is its wafer; a wafer has the rank of the chief
        that requested it.
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
        """Execution mode of the job's interpreter."""
        return self.job.mode

    @property
    def streamers(self) -> tuple[int, ...]:
        """Ranks of the streamers, in order; a pipelined task without streamers is its own."""
        ranks = tuple(t.rank for t in self.job.tasks if t.role is Role.STREAMER)
        return ranks or (0,)

    @property
    def memoryx(self) -> int:
        """Number of MemoryX tasks of the job; at least 1 in weight streaming."""
        return sum(task.role is Role.MEMORYX for task in self.job.tasks)

    @property
    def swarmx(self) -> tuple[int, ...]:
        """Ranks of the SwarmX tasks, if the job has any."""
        return tuple(task.rank for task in self.job.tasks if task.role is Role.SWARMX)

    @property
    def streaming_cpus(self) -> tuple[int, ...]:
        """CPUs that this streamer may use.

        If streamers of the job share CPUs, each may use the CPUs of all of them.
        """
        if self.job.hosts is not Hosts.SHARED:
            return self.entry.cpus
        taken = [cpu for t in self.job.tasks if t.role is Role.STREAMER for cpu in t.cpus]
        every = sorted(set(taken))
        return self.entry.cpus if len(every) == len(taken) else tuple(every)

    @property
    def host(self) -> Host | None:
        """Machine that this task runs on; None if all tasks of the job share one."""
        if self.job.hosts is Hosts.SHARED:
            return None
        return Host(self.entry.node, self.entry.address)

    @property
    def telemetry_dir(self) -> Path:
        """Folder in which this task publishes the progress of its run."""
        return self.job.telemetry_dir(self.job_dir)

    @property
    def secret(self) -> bytes:
        """Shared secret of the job, with which its tasks authenticate each other.

        Raises: CsrunError if another account could have written or read it
        """
        return read_secret(self.job_dir / SECRET_FILE)

    @property
    def report_name(self) -> str:
        """Name of this task's report file."""
        return str(self.rank) if self.wafer is None else f"wafer-{self.wafer}"

    def link(self) -> JobLink:
        """Return a connection to this job's launcher."""
        return JobLink(self.job_dir, self.rank, self.entry.node_id)


@lru_cache(maxsize=1)
def current() -> TaskContext | None:
    """Return this process's task, or None outside of csrun's launchers.

    Source: the launcher sets CSRUN_JOB_DIR; both launchers set SLURM_PROCID, the rank
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
    """Report an error before it closes this task's connections, if the task is in a job.

    The peers fail as soon as the connections close; by then the launcher must find the cause. The
    report at the task's exit replaces this one.
    """
    context = current()
    if context is None or not isinstance(error, Exception) or isinstance(error, PeerLost):
        return
    text = "".join(traceback.format_exception(error))
    # on a full disk the report at exit fails as well, and is reported there
    with suppress(OSError):
        report_of(context.rank, error, text).write(context.job_dir, context.report_name)


_NAME = "csrun_mode"


def interpreter_options(mode: ExecutionMode) -> tuple[str, str]:
    """Return the options with which Python is the interpreter of a mode."""
    return "-X", f"{_NAME}={mode}"


def interpreter_mode() -> ExecutionMode:
    """Return the mode of this interpreter; PIPELINED for plain Python."""
    return ExecutionMode(sys._xoptions.get(_NAME, ExecutionMode.PIPELINED))
