"""The logs of a job's tasks on their way to the user: the console, or the files of --output."""

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from csrun.context import JobFile, Progress, Role, TaskReport
from csrun.jobs.folder import JobFolder
from csrun.jobs.registered_job import RegisteredJob
from csrun.jobs.request import JobOptions
from csrun.launch.process.output_files import OutputFiles, is_of_tasks
from csrun.launch.process.protocol import StartTask
from csrun.records import log_lines

if TYPE_CHECKING:
    from csrun.context.bars import Bars

_READ_BYTES = 1 << 20


class LogTail:
    """One task's log, read as it grows: whole lines, and nothing of a reported error's own text.

    With a `label`, every line comes with it in front, and the last one has its end.
    """

    def __init__(self, log: Path, report: Callable[[], TaskReport | None], label: str = "") -> None:
        self._label = label.encode()
        self._log = log
        self._report = report
        self._offset = 0
        self._partial = b""
        self._end: int | None = None  # where a reported error's own text begins

    def read(self, is_last: bool = False) -> bytes:
        """Text written since, up to the last line's end; all of it when `is_last`.

        The data is read before the report is looked for: a report is there before its traceback
        is in the log, so what is read without a report is not part of one. A log that has not
        grown costs one look at its size.
        """
        new = self._read_new()
        if not new and not is_last:
            return b""
        data = self._partial + new
        start = self._offset - len(data)
        if self._end is None and (report := self._report()) is not None:
            self._end = report.log_bytes
        if self._end is not None:
            data = data[: max(0, self._end - start)]
        end = len(data) if is_last else data.rfind(b"\n") + 1
        self._partial = data[end:]
        self._offset = start + len(data)
        return self._labelled(data[:end])

    def begin_anew(self) -> None:
        """Continue after the existing text: a restarted task appends to it."""
        self._partial, self._end = b"", None
        self._offset = self._log.stat().st_size if self._log.exists() else 0

    def _labelled(self, data: bytes) -> bytes:
        if not self._label or not data:
            return data
        lines = data.removesuffix(b"\n").split(b"\n")
        return b"".join(b"%b%b\n" % (self._label, line) for line in lines)

    def _read_new(self) -> bytes:
        try:
            if self._readable() <= self._offset:
                return b""
            with self._log.open("rb") as file:
                file.seek(self._offset)
                data = file.read(_READ_BYTES)
        except FileNotFoundError:
            return b""
        self._offset += len(data)
        return data

    def _readable(self) -> int:
        size = self._log.stat().st_size
        return size if self._end is None else min(size, self._end)


class Console:
    """The user's terminal: log lines, and progress below them when it is one."""

    def __init__(self) -> None:
        self._bars: Bars | None = None  # drawn once there is one

    def write(self, data: bytes) -> None:
        """Show text of a task's log."""
        if not data:
            return
        text = data.decode(errors="replace")
        if sys.stdout.isatty():
            colour = log_lines.has_colour(sys.stdout)
            text = "\n".join(log_lines.for_terminal(line, colour) for line in text.split("\n"))
        if self._bars is not None:
            self._bars.write(text)
        else:
            sys.stdout.write(text)
            sys.stdout.flush()

    def progress(self, progress: Progress) -> None:
        """Show how far a long operation is."""
        if not sys.stdout.isatty():
            return
        if self._bars is None:
            from csrun.context.bars import Bars

            self._bars = Bars()
        self._bars.update(progress)

    def close(self) -> None:
        """Take the progress display down."""
        if self._bars is not None:
            self._bars.close()


@dataclass(frozen=True)
class _Way:
    tail: LogTail
    write: Callable[[bytes], None]


class TaskOutput:
    """The tasks whose logs are shown, and where each one's goes."""

    def __init__(self) -> None:
        self._console = Console()
        self._ways: dict[str, _Way] = {}
        self._on_console: set[str] = set()
        self._closing = ExitStack()

    def to_console(self, folder: JobFolder, labels: Mapping[int, str]) -> None:
        """Show tasks' output, by rank, where the command was given.

        What of it a report tells is shown at the end of the job, once.
        """
        for rank, label in labels.items():
            name = log_name(rank)
            tail = LogTail(folder.log(name), _report_reader(folder, rank), label)
            self._ways[name] = _Way(tail, self._console.write)
            self._on_console.add(name)

    def to_files(
        self, folder: JobFolder, labels: Mapping[int, str], job: JobFile, files: OutputFiles
    ) -> None:
        """Write all of tasks' output, by rank, into files.

        Raises: UsageError when one cannot be written
        """
        self._closing.enter_context(files)
        for rank, label in labels.items():
            name = log_name(rank)
            tail = LogTail(folder.log(name), lambda: None, label)
            self._ways[name] = _Way(tail, files.of(job.tasks[rank]).write)

    def was_on_console(self, name: str) -> bool:
        """True when the user has seen this task's output."""
        return name in self._on_console

    def forward(self, is_last: bool = False) -> None:
        """Show what has been written since; all of it when `is_last`.

        Raises: OutputError when there is no place to show it
        """
        for way in self._ways.values():
            while data := way.tail.read():
                way.write(data)
            if is_last:
                way.write(way.tail.read(is_last=True))

    def progress(self, progress: Progress) -> None:
        """Show how far a long operation is."""
        self._console.progress(progress)

    def begin_anew(self) -> None:
        """All tasks start again."""
        for way in self._ways.values():
            way.tail.begin_anew()

    def give_up(self) -> None:
        """Show nothing any more."""
        self._ways.clear()
        self._on_console.clear()

    def close(self) -> None:
        """Take the progress display down, and close the files."""
        self._console.close()
        self._closing.close()


def task_output(job_file: JobFile, job: RegisteredJob, label: bool) -> TaskOutput:
    """Console output that a job's options select.

    Raises: UsageError when a file of --output cannot be written
    """
    options = JobOptions(job.record.name, output=job.record.output)
    return show(job_file, job.folder, options, job.record.user, label)


def show(
    job_file: JobFile, folder: JobFolder, options: JobOptions, user: str, label: bool
) -> TaskOutput:
    """Output settings of a job of this name and user.

    Raises: UsageError when a file of --output cannot be written
    """
    output, pattern = TaskOutput(), options.output
    everyone = range(len(job_file.tasks))
    per_task = pattern is not None and is_of_tasks(pattern)
    ranks = everyone if label or per_task else visible_ranks(job_file)
    labels = {rank: rank_label(rank, len(everyone)) if label else "" for rank in ranks}
    if pattern is None:
        output.to_console(folder, labels)
    else:
        files = OutputFiles(pattern, job_file.job_id, options.job_name or "", user)
        output.to_files(folder, labels, job_file, files)
    return output


def visible_ranks(job: JobFile) -> list[int]:
    """The chief's log speaks for a training; of another command, every task's does."""
    return [task.rank for task in job.tasks if task.role in (Role.CHIEF, Role.TASK)]


def rank_label(rank: int, tasks: int) -> str:
    """Prefix of each line of a task, of one width in the whole job."""
    return f"{rank:{len(str(tasks - 1))}}: "


def _report_reader(folder: JobFolder, rank: int) -> Callable[[], TaskReport | None]:
    return lambda: folder.report(str(rank))


def log_name(rank: int) -> str:
    """The name of a planned task's log."""
    return StartTask(rank, ()).name
