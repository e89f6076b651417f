"""First cause of a job's failure; exits are not reaped in the order in which they happen. Pure."""

import signal
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from csrun.base.errors import shell_code
from csrun.context import Role, TaskReport, TaskReportKind
from csrun.context.job import peer_name


@dataclass(frozen=True)
class TaskEnd:
    """End of one task. `exit_code` is negative for a signal's number; times are monotonic.

    missed: end of a task that lost this one as a peer. This one then ended early with exit code 0,
        or the launcher had to end it.
    """

    name: str
    rank: int
    role: Role
    node: str
    exit_code: int
    time_s: float
    ended_by_launcher: bool = False
    report: TaskReport | None = None
    wafer: str | None = None
    missed: "TaskEnd | None" = None

    @property
    def failed(self) -> bool:
        """True if the task failed."""
        return self.exit_code != 0

    @property
    def cause_time_s(self) -> float:
        """Time of the failure: as the task reported it, else when its exit was seen."""
        return self.report.time_s if self.report else self.time_s

    @property
    def job_exit_code(self) -> int:
        """Exit code of a job with this first cause: 128 + signal for a killed task.

        1 for a task that ended too early with exit code 0. For a task that the launcher had to end,
        the exit code of the task that lost it. A task that was killed after its report has the exit
        code of the report.
        """
        if self.report is not None and self.exit_code < 0:
            return self.report.exit_code
        if self.ended_by_launcher and self.missed is not None:
            return self.missed.job_exit_code
        return shell_code(self.exit_code) or 1

    @property
    def is_consequence(self) -> bool:
        """True if the task only lost a peer, or ended early and another task lost it."""
        lost_one = self.report is not None and self.report.kind is TaskReportKind.PEER_LOST
        return lost_one or self.missed is not None

    @property
    def peer_name(self) -> str:
        """Role name of the task among its peers."""
        return peer_name(self.role, self.rank, self.wafer)


def first_cause(ends: Iterable[TaskEnd]) -> TaskEnd | None:
    """Return the failure that came first; None if no task failed by itself.

    Tasks that the launcher ended do not count. If all failed tasks have only lost a peer, the cause
    is the lost task: one that ended early with exit code 0 (a task that had finished its work would
    not have been missed), else one that the launcher had to end. If there is no such task, it is
    the first task that lost a peer.
    """
    ends = [*ends]
    failed = sorted(
        (end for end in ends if end.failed and not end.ended_by_launcher),
        key=lambda end: end.cause_time_s,
    )
    causes = [end for end in failed if not end.is_consequence]
    ended_early = [end for end in ends if not end.failed and not end.ended_by_launcher]
    silent = [end for end in ends if end.ended_by_launcher]
    missed = _missed(failed, ended_early) or _missed(failed, silent)
    return next(iter(causes or missed or failed), None)


def _missed(lost_peers: Iterable[TaskEnd], ends: Iterable[TaskEnd]) -> list[TaskEnd]:
    """Return the tasks of `ends` that `lost_peers` lost; of a system's wafers the last one."""
    by_name = {end.peer_name: end for end in ends}
    missing = ((end, end.report.lost) for end in lost_peers if end.report is not None)
    return [replace(by_name[lost], missed=end) for end, lost in missing if lost in by_name]


_HINTS: dict[int, str] = {
    signal.SIGBUS: ": a memory-mapped file could not be read or written; check the disk of the "
    "weight store (runconfig.weight_store_dir)"
}
LOG_NAME = "forkserver"
TAIL_LINES = 20
# A log may have gigabytes; only its end is read.
_TAIL_BYTES = 64 * 1024
_PREFIX = "csrun_wse: error:"


def describe_cause(cause: TaskEnd, log: Path, was_forwarded: bool) -> str:
    """Describe the failure of a job in full sentences.

    log: log of the failed task, which may have been printed already.
    """
    report = cause.report
    if report is not None and report.kind is not TaskReportKind.EXIT and report.exit_code:
        return _describe_report(cause, report, log)
    lines = [f"{_PREFIX} {summarize(cause)}"]
    if cause.missed is not None and cause.missed.report is not None:
        lines += [f"  {task_title(cause.missed)}: {cause.missed.report.message}"]
    if not was_forwarded:
        lines += _tail(log)
    return "\n".join([*lines, f"log: {log}"])


def summarize(cause: TaskEnd) -> str:
    """Describe the failure of a job in one line."""
    report = cause.report
    if cause.missed is not None and cause.ended_by_launcher:
        return f"{task_title(cause)} dropped its connections and reported no cause"
    if cause.missed is not None:
        return f"{task_title(cause)} ended early, exit code {cause.exit_code}"
    if report is not None and report.kind is not TaskReportKind.EXIT and report.exit_code:
        return f"{task_title(cause)}: {report.message}"
    return f"{task_title(cause)} {describe_exit(cause.exit_code)}"


def task_title(end: TaskEnd) -> str:
    """Name a task for a summary."""
    return describe_task(end.rank, end.role, end.node, end.wafer)


def describe_task(rank: int, role: Role, node: str, wafer: str | None = None) -> str:
    """Name a task by its rank, role and node, or by the system of the wafer."""
    if wafer is not None:
        return f"wafer of {wafer} (for rank {rank} on {node})"
    return f"rank {rank} ({role}) on {node}"


def describe_exit(exit_code: int) -> str:
    """Describe how a process ended; negative codes are signals."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    hint = _HINTS.get(-exit_code, "")
    return f"was killed by signal {-exit_code} ({_signal_name(-exit_code)}){hint}"


def describe_server_loss(exit_code: int, job_dir: Path) -> str:
    """Describe the failure of a job whose fork server died; a server that was not killed has logged
    it.
    """
    lines = [
        f"{_PREFIX} the fork server {describe_exit(exit_code)}; the tasks of the job ended with it"
    ]
    if exit_code > 0:
        lines += _tail(job_dir / "logs" / f"{LOG_NAME}.log")
    return "\n".join([*lines, f"logs: {job_dir / 'logs'}"])


def describe_srun_loss(exit_code: int, log: Path) -> str:
    """Describe the failure of a job whose srun ended before its tasks."""
    lines = [f"{_PREFIX} srun {describe_exit(exit_code)}; the tasks of the job ended with it"]
    return "\n".join([*lines, *_tail(log), f"log: {log}"])


def _describe_report(cause: TaskEnd, report: TaskReport, log: Path) -> str:
    place = f"{task_title(cause)}, exit code {cause.job_exit_code}; log: {log}"
    if report.kind is TaskReportKind.ERROR:
        end = f"{task_title(cause)} {describe_exit(cause.exit_code)}"
        return f"{_PREFIX} {end}\n{report.traceback}log: {log}"
    return f"{_PREFIX} {report.message}\n  {place}"


def _tail(log: Path) -> list[str]:
    try:
        with log.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - _TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    return [f"  {line}" for line in text.splitlines()[-TAIL_LINES:]]


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
