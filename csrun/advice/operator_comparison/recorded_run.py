"""A second run of a training, in a folder of its own, in which values are recorded."""

import errno
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir

from csrun.base.errors import UsageError
from csrun.base.files import read_end
from csrun.base.run_command import RunCommand
from csrun.context import Rerun
from csrun.context.environment import inherited
from csrun.executable.recorded_values import DONE, FOLDER, OF_TORCH
from csrun.records import checkpoints
from csrun.records.checkpoints import Checkpoint
from csrun.records.model_dir import read_command

LOOP_VALUES = "loop_values"
LOG_FILE = "rerun.log"
POLL_S = 0.05
_FULL = os.strerror(errno.ENOSPC)
_LITTLE_BYTES = 1 << 20  # free on a disk on which a value had no room
WAIT_BYTES = 1 << 10
_WAITS = re.compile(r"^(?:csrun: |csrun_wse: job \d+ |INFO:csrun:)([Ww]ait(?:s|ing) for .*)")
END_S = 60.0  # time for a job to end after its cancellation


@dataclass(frozen=True)
class RecordedRun:
    """A training of the past, or that of a command. name: in messages. model_dir: its folder, which
    is only read; None of a command.
    """

    name: str
    command: RunCommand
    model_dir: Path | None = None

    @classmethod
    def of(cls, model_dir: Path) -> "RecordedRun":
        """The training in a model_dir.

        Raises: UsageError where its command is not known
        """
        return cls(str(model_dir), read_command(model_dir), model_dir)

    def record(
        self,
        start: Checkpoint | None,
        steps: tuple[int, int],
        folder: Path,
        *,
        against_torch: bool = False,
        report: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Run it again from a checkpoint of its own, or from the beginning, with these steps
        recorded in `folder`; it is ended after them. against_torch: PyTorch computes them, too.
        report: gets what a job waits for.

        Raises: UsageError where the command fails, or PyTorch
        """
        folder.mkdir(parents=True)
        if start is not None:
            checkpoints.copy(start, folder)
            if self.model_dir and (values := self.model_dir / LOOP_VALUES).is_file():
                shutil.copyfile(values, folder / LOOP_VALUES)
        again = Rerun(str(folder.absolute()), steps, start is not None, against_torch)
        with self._process(again, folder / LOG_FILE) as process:
            code, source, reported = None, OF_TORCH if against_torch else "", ""
            while code is None and not _done(folder, source):
                time.sleep(POLL_S)
                code = process.poll()
                if (waits := _wait_in(folder / LOG_FILE)) and waits != reported:
                    report(f"{self.name}: {waits}")
                    reported = waits
        if failed := [text for path in _done(folder, source) if (text := path.read_text())]:
            raise UsageError(f"{self.name}: PyTorch cannot compute the step: {failed[0]}")
        if code or not _recorded(folder):
            raise UsageError(self._why_failed(code or 0, folder / LOG_FILE))

    def _why_failed(self, code: int, log: Path) -> str:
        last = _last_line(log)
        if _FULL in last or shutil.disk_usage(log).free < _LITTLE_BYTES:
            return (
                f"{self.name}: no space left for its values in {gettempdir()}: set TMPDIR to a"
                " folder on a larger disk"
            )
        if code:
            return f"{self._failed}: exit code {code}: {last}"
        return f"{self.name}: recorded no value: ended before its first step, exit code 0"

    @property
    def _failed(self) -> str:
        """Start of a message: that it cannot be run."""
        if self.model_dir is None:
            return f"{self.name}: failed"
        return f"{self.name}: cannot be run again: {' '.join(self.command.argv)}"

    @contextmanager
    def _process(self, again: Rerun, log: Path) -> "Iterator[subprocess.Popen[bytes]]":
        """The command as a process, which is ended if it still runs."""
        with open(log, "wb") as file:
            try:
                process = subprocess.Popen(
                    self.command.argv,
                    cwd=self.command.directory,
                    env=inherited() | again.variables(),
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                )
            except OSError as error:
                raise UsageError(
                    f"{self._failed}: {self.command.argv[0]} in {self.command.directory}:"
                    f" {error.strerror}"
                ) from error
            try:
                yield process
            finally:
                _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _done(folder: Path, source: str) -> list[Path]:
    """Files of programs that have recorded all; of PyTorch's values only once each has."""
    if source and not all((each / source / DONE).exists() for each in _recorded(folder)):
        return []
    return [path for each in _recorded(folder) if (path := each / source / DONE).exists()]


def _recorded(folder: Path) -> list[Path]:
    """Folders of the values of all programs of a run."""
    return [*folder.glob(f"tfcs_*/{FOLDER}")]


def _wait_in(log: Path) -> str:
    """Return the reason for a wait, if that is the last line that the command has printed."""
    last = read_end(log, WAIT_BYTES).strip().rpartition("\n")[2]
    return found[1] if (found := _WAITS.match(last)) else ""


def _last_line(log: Path) -> str:
    """Last line that a command has printed; a launcher's, which names the log, with its error."""
    lines = log.read_text(errors="replace").strip().splitlines()
    count = 2 if lines and "log: " in lines[-1] else 1
    return "; ".join(line.strip() for line in lines[-count:]) or "it printed nothing"
