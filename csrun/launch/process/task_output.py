"""Forwarding of the tasks' logs to the console, or to the files of --output."""

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
    from csrun.context.terminal_bars import ProgressBars

_READ_BYTES = 1 << 20


class LogTail:
    """Reader of one task's growing log; returns complete lines, without the text of a reported
    error.

    label: prefix of every line; the last line is then terminated.
    """

    def __init__(self, log: Path, report: Callable[[], TaskReport | None], label: str = "") -> None:
        self._label = label.encode()
        self._log = log
        self._report = report
        self._offset = 0
        self._partial = b""
        self._end: int | None = None  # position at which the text of a reported error begins

    def read(self, is_last: bool = False) -> bytes:
        """Return the text written since the last call, up to the last line's end; all of it if
        `is_last`.

        The data is read before the report is looked for. A report exists before its traceback is in
        the log, so text that was read without a report is not part of a traceback. A log that has
        not grown costs one stat().
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

    def resume_after_restart(self) -> None:
        """Continue after the existing text, to which a restarted task appends."""
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
    """The user's terminal: log lines, with a progress display below on a terminal."""

    def __init__(self) -> None:
        self._bars: ProgressBars | None = None  # created when progress is first shown

    def write(self, data: bytes) -> None:
        """Print text of a task's log."""
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
        """Show the progress of a long operation."""
        if not sys.stdout.isatty():
            return
        if self._bars is None:
            from csrun.context.terminal_bars import ProgressBars

            self._bars = ProgressBars()
        self._bars.update(progress)

    def close(self) -> None:
        """Remove the progress display."""
        if self._bars is not None:
            self._bars.close()


@dataclass(frozen=True)
class _LogCopy:
    tail: LogTail
    write: Callable[[bytes], None]


class TaskOutput:
    """Tasks whose logs are shown, with the destination of each."""

    def __init__(self) -> None:
        self._console = Console()
        self._copies: dict[str, _LogCopy] = {}
        self._on_console: set[str] = set()
        self._closing = ExitStack()

    def to_console(self, folder: JobFolder, labels: Mapping[int, str]) -> None:
        """Forward the output of tasks, by rank, to the console.

        Text of a report is printed once, at the end of the job.
        """
        for rank, label in labels.items():
            name = log_name(rank)
            tail = LogTail(folder.log(name), _report_reader(folder, rank), label)
            self._copies[name] = _LogCopy(tail, self._console.write)
            self._on_console.add(name)

    def to_files(
        self, folder: JobFolder, labels: Mapping[int, str], job: JobFile, files: OutputFiles
    ) -> None:
        """Write all output of tasks, by rank, to files.

        Raises: UsageError if a file cannot be written
        """
        self._closing.enter_context(files)
        for rank, label in labels.items():
            name = log_name(rank)
            tail = LogTail(folder.log(name), lambda: None, label)
            self._copies[name] = _LogCopy(tail, files.of(job.tasks[rank]).write)

    def was_on_console(self, name: str) -> bool:
        """True if this task's output was printed on the console."""
        return name in self._on_console

    def forward(self, is_last: bool = False) -> None:
        """Forward new text; all of it if `is_last`.

        Raises: OutputError if the destination cannot be written
        """
        for copy in self._copies.values():
            while data := copy.tail.read():
                copy.write(data)
            if is_last:
                copy.write(copy.tail.read(is_last=True))

    def progress(self, progress: Progress) -> None:
        """Show the progress of a long operation."""
        self._console.progress(progress)

    def resume_after_restart(self) -> None:
        """Continue after a restart of all tasks."""
        for copy in self._copies.values():
            copy.tail.resume_after_restart()

    def give_up(self) -> None:
        """Stop forwarding."""
        self._copies.clear()
        self._on_console.clear()

    def close(self) -> None:
        """Remove the progress display, and close the files."""
        self._console.close()
        self._closing.close()


def task_output(job_file: JobFile, job: RegisteredJob, label: bool) -> TaskOutput:
    """Return the output that a job's options select.

    Raises: UsageError if a file of --output cannot be written
    """
    options = JobOptions(job.record.name, output=job.record.output)
    return show(job_file, job.folder, options, job.record.user, label)


def show(
    job_file: JobFile, folder: JobFolder, options: JobOptions, user: str, label: bool
) -> TaskOutput:
    """Return the output of a job with this name and user.

    Raises: UsageError if a file of --output cannot be written
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
    """Return the ranks whose logs are shown: only the chief's for a training, else all."""
    return [task.rank for task in job.tasks if task.role in (Role.CHIEF, Role.TASK)]


def rank_label(rank: int, tasks: int) -> str:
    """Return the prefix of each line of a task; all prefixes of a job have equal width."""
    return f"{rank:{len(str(tasks - 1))}}: "


def _report_reader(folder: JobFolder, rank: int) -> Callable[[], TaskReport | None]:
    return lambda: folder.report(str(rank))


def log_name(rank: int) -> str:
    """Return the log name of a planned task."""
    return StartTask(rank, ()).name
