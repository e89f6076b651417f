"""The tasks of a job, with their state and use of CPU and memory."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from csrun.context import JobFile, Role, TaskReportKind
from csrun.context.job import TaskEntry, ended_file, peer_name
from csrun.jobs.folder import JobFolder
from csrun.launch.first_cause import describe_task
from csrun.launch.process.task_output import log_name
from csrun.launch.process.usage_log import TaskLoad
from csrun.watch.site_snapshot import TaskLine

_WAFER = "wafer-"
_STOPPED, _ZOMBIE = "Tt", "Z"


@dataclass(frozen=True)
class TaskSnapshot:
    """The tasks of a job at a moment.

    is_active: the job is pending or running.
    loads: by log.
    sampled: logs of the tasks that had a load at this moment or earlier.
    cause: why the job failed; it begins with the task that failed first.
    """

    job: JobFile
    folder: JobFolder
    loads: Mapping[str, TaskLoad]
    sampled: Set[str]
    is_active: bool
    straggler: str = ""
    cause: str = ""

    def lines(self) -> tuple[TaskLine, ...]:
        """Return a line for each task by rank, and for each wafer below its chief."""
        chief, *others = map(self._of_task, self.job.tasks)
        return (chief, *self._wafers(), *others)

    def _of_task(self, task: TaskEntry) -> TaskLine:
        log, name = log_name(task.rank), peer_name(task.role, task.rank)
        load = self.loads.get(log)
        label = describe_task(task.rank, task.role, task.node)
        has_ended = ended_file(self.folder.path, task.rank).exists()
        return TaskLine(
            name,
            task.rank,
            task.role,
            task.node,
            self._state(str(task.rank), label, load, has_ended),
            None if load is None else load.cpu_percent,
            None if load is None else load.memory_bytes,
            bool(self.straggler) and name == self.straggler,
            log,
        )

    def _wafers(self) -> list[TaskLine]:
        found, chief = [], self.job.tasks[0]
        for log in sorted(path.stem for path in self.folder.logs.glob(f"{_WAFER}*.log")):
            load, system = self.loads.get(log), log.removeprefix(_WAFER)
            label = describe_task(chief.rank, Role.WAFER, chief.node, system)
            # Nothing marks the end of a wafer; one that has just started has no load yet.
            has_ended = load is None and log in self.sampled
            found.append(
                TaskLine(
                    peer_name(Role.WAFER, system=system),
                    None,
                    Role.WAFER,
                    chief.node,
                    self._state(log, label, load, has_ended),
                    None if load is None else load.cpu_percent,
                    None if load is None else load.memory_bytes,
                    log=log,
                )
            )
        return found

    def _state(self, report_name: str, label: str, load: TaskLoad | None, has_ended: bool) -> str:
        if self.cause.startswith(label):  # a killed task has written no report
            return "failed"
        report = self.folder.report(report_name)
        if report is not None and report.kind is not TaskReportKind.PEER_LOST:
            return "failed"
        if report is not None or has_ended or not self.is_active:
            return "ended"
        if load is None:
            return "unknown"
        if load.state in _STOPPED:
            return "stopped"
        return "ended" if load.state == _ZOMBIE else "running"
