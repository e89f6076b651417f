"""The console of a job: its tasks' logs as they grow, and below them how far the job is."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from csrun.context import Progress, TaskReport

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
        self._bars: Bars | None = None  # drawn once there is one

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
