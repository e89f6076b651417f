"""The tasks of a job, with their state and use of CPU and memory."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

from csrun.context import JobFile, Role
from csrun.context.job import TaskEntry, ended_file, peer_name
from csrun.jobs.folder import JobFolder
from csrun.launch.process.task_output import log_name
from csrun.launch.process.task_usage import TaskUsage
from csrun.watch.site_snapshot import TaskLine

_WAFER = "wafer-"
_STOPPED, _ZOMBIE = "Tt", "Z"


@dataclass(frozen=True)
class _Reading:
    """Units: at_s of the monotonic clock"""

    at_s: float
    cpu_s: float


class CpuMeter:
    """CPU use of tasks since the last look at each."""

    def __init__(self) -> None:
        self._last: dict[str, _Reading] = {}

    def percent(self, usage: TaskUsage) -> float:
        """Percent of one CPU since the last look; since the task's start at the first one."""
        now_s = time.monotonic()
        last = self._last.get(usage.name, _Reading(now_s - usage.age_s, 0.0))
        self._last[usage.name] = _Reading(now_s, usage.cpu_s)
        passed_s, used_s = now_s - last.at_s, usage.cpu_s - last.cpu_s
        return max(0.0, 100 * used_s / passed_s) if passed_s > 0 else 0.0


@dataclass(frozen=True)
class TasksNow:
    """The tasks of a job at a moment. is_active: the job waits or runs;"""

    job: JobFile
    folder: JobFolder
    usages: Mapping[str, TaskUsage]
    is_active: bool
    straggler: str = ""

    def lines(self, meter: CpuMeter) -> tuple[TaskLine, ...]:
        """A line for each task by rank, and for each wafer below its chief."""
        chief, *others = [self._of_task(task, meter) for task in self.job.tasks]
        return (chief, *self._wafers(meter), *others)

    def _of_task(self, task: TaskEntry, meter: CpuMeter) -> TaskLine:
        usage = self.usages.get(log_name(task.rank))
        name = peer_name(task.role, task.rank)
        return TaskLine(
            name,
            task.rank,
            task.role,
            task.node,
            self._state(str(task.rank), usage, ended_file(self.folder.path, task.rank).exists()),
            None if usage is None else meter.percent(usage),
            None if usage is None else usage.memory_bytes,
            bool(self.straggler) and name == self.straggler,
        )

    def _wafers(self, meter: CpuMeter) -> list[TaskLine]:
        logs = sorted(self.folder.logs.glob(f"{_WAFER}*.log"))
        found = []
        for log in logs:
            usage, system = self.usages.get(log.stem), log.stem.removeprefix(_WAFER)
            found.append(
                TaskLine(
                    peer_name(Role.WAFER, system=system),
                    None,
                    Role.WAFER,
                    self.job.tasks[0].node,
                    self._state(log.stem, usage, usage is None),
                    None if usage is None else meter.percent(usage),
                    None if usage is None else usage.memory_bytes,
                )
            )
        return found

    def _state(self, report_name: str, usage: TaskUsage | None, has_ended: bool) -> str:
        if self.folder.report(report_name) is not None:
            return "failed"
        if has_ended or not self.is_active:
            return "ended"
        if usage is None:
            return "unknown"
        if usage.state in _STOPPED:
            return "stopped"
        return "ended" if usage.state == _ZOMBIE else "running"
