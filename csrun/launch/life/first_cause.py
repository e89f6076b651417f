"""Which of a job's failures was the first; deaths are not reaped in the order they happen. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass

from csrun.context import Role, TaskReport, TaskReportKind


@dataclass(frozen=True)
class TaskEnd:
    """How one task ended. `exit_code` is negative for a signal's number; times are monotonic."""

    name: str
    rank: int
    role: Role
    node: str
    exit_code: int
    time_s: float
    ended_by_launcher: bool = False
    report: TaskReport | None = None
    wafer: str | None = None

    @property
    def failed(self) -> bool:
        """True when the end was not a success."""
        return self.exit_code != 0

    @property
    def cause_time_s(self) -> float:
        """When the failure happened: by the task's own word, or when its death was seen."""
        return self.report.time_s if self.report else self.time_s

    @property
    def job_exit_code(self) -> int:
        """The exit code of a job whose first cause this is: 128 + signal for a killed task."""
        return 128 - self.exit_code if self.exit_code < 0 else self.exit_code

    @property
    def is_consequence(self) -> bool:
        """True when the task only lost a peer."""
        return self.report is not None and self.report.kind is TaskReportKind.PEER_LOST


def first_cause(ends: Iterable[TaskEnd]) -> TaskEnd | None:
    """The failure that came first; None when no task failed by itself.

    Tasks that the launcher ended do not count. A lost peer counts when there is nothing else.
    """
    failed = [end for end in ends if end.failed and not end.ended_by_launcher]
    causes = [end for end in failed if not end.is_consequence]
    return min(causes or failed, key=lambda end: end.cause_time_s, default=None)
