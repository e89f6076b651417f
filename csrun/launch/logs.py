"""The console of a job: its tasks' logs as they grow, and below them how far the job is."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from csrun.context import Progress, TaskReport

if TYPE_CHECKING:
    import rich.progress

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
        """What has been written since, up to the last line's end; all of it when `is_last`.

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
        self._bars = _Bars() if sys.stdout.isatty() else None

    def write(self, data: bytes) -> None:
        """Show text of a task's log."""
        if not data:
            return
        text = data.decode(errors="replace")
        if self._bars is not None:
            self._bars.write(text)
        else:
            sys.stdout.write(text)
            sys.stdout.flush()

    def progress(self, progress: Progress) -> None:
        """Show how far a long operation is."""
        if self._bars is not None:
            self._bars.update(progress)

    def close(self) -> None:
        """Take the progress display down."""
        if self._bars is not None:
            self._bars.close()


class _Bars:
    """Progress bars, one an operation, drawn only once there is one."""

    def __init__(self) -> None:
        self._progress: rich.progress.Progress | None = None
        self._tasks: dict[str, rich.progress.TaskID] = {}

    def write(self, text: str) -> None:
        if self._progress is None:
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            self._progress.console.out(text, end="", highlight=False)

    def update(self, progress: Progress) -> None:
        if self._progress is None:
            self._progress = _started()
        total = progress.total or None
        if progress.what not in self._tasks:
            self._tasks[progress.what] = self._progress.add_task(progress.what, text="")
        task = self._tasks[progress.what]
        self._progress.update(task, completed=progress.done, total=total, text=progress.text)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()


def _started() -> "rich.progress.Progress":
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[text]}"),
        TimeRemainingColumn(),
    )
    progress = RichProgress(*columns, transient=True)
    progress.start()
    return progress
