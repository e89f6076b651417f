"""Files of --output for the output of a job's tasks, named by srun's patterns."""

import os
import re
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

from csrun.base.errors import OutputError, UsageError
from csrun.context import TaskEntry

_FIELD = re.compile(r"%(\d*)(.?)", re.DOTALL)
_OF_A_TASK = frozenset("tnN")


@dataclass(frozen=True)
class OutputPlace:
    """Values of a pattern's fields."""

    job_id: int
    job_name: str
    user: str
    entry: TaskEntry


_FIELDS: dict[str, Callable[[OutputPlace], str | int]] = {
    "j": lambda place: place.job_id,
    # A slash in the job's name would create a path.
    "x": lambda place: place.job_name.replace("/", "_"),
    "u": lambda place: place.user,
    "t": lambda place: place.entry.rank,
    "n": lambda place: place.entry.node_id,
    "N": lambda place: place.entry.node,
}


def check_pattern(pattern: str) -> None:
    """Check a pattern before the job exists.

    Raises: UsageError for an unknown field, or a parent that is missing or not a folder
    """
    for match in _FIELD.finditer(pattern):
        if match[2] != "%" and match[2] not in _FIELDS:
            known = ", ".join(f"%{field}" for field in _FIELDS)
            raise UsageError(f"--output: {pattern}: unknown field {match[0]}; known: {known}, %%")
    folder = Path(pattern).parent
    if "%" not in str(folder) and not os.path.isdir(folder):
        raise UsageError(f"--output: {pattern}: no such folder: {folder}; create it with mkdir -p")
    if os.path.isdir(Path(pattern)):  # also for an empty pattern
        example = Path(pattern) / "%j.out"
        raise UsageError(
            f"--output: must be a file, got the folder {Path(pattern)}: name one, e.g. {example}"
        )


def is_of_tasks(pattern: str) -> bool:
    """True if each task, or each node, has a separate file."""
    return any(match[2] in _OF_A_TASK for match in _FIELD.finditer(pattern))


def expand(pattern: str, place: OutputPlace) -> Path:
    """Return the file of a task. A number in a field is a width, padded with zeros.

    Source: srun(1), filename pattern
    """

    def value(match: re.Match[str]) -> str:
        width, field = match.groups()
        if field == "%":
            return "%"
        found = _FIELDS[field](place)
        return f"{found:0{int(width or 0)}}" if isinstance(found, int) else found

    return Path(_FIELD.sub(value, pattern))


class OutputFile:
    """File to which output is appended as it arrives."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: BinaryIO = path.open("wb", buffering=0)
        except OSError as error:
            raise UsageError(f"--output: {path}: cannot be written: {error.strerror}") from error

    def write(self, data: bytes) -> None:
        """Append text.

        Raises: OutputError if the write fails
        """
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise OutputError(error, str(self._path)) from error

    def fileno(self) -> int:
        """Descriptor for a process to write to."""
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


class OutputFiles:
    """Open files of a job, each opened once."""

    def __init__(self, pattern: str, job_id: int, job_name: str, user: str) -> None:
        self._pattern = pattern
        self._job = (job_id, job_name, user)
        self._files: dict[Path, OutputFile] = {}
        self._open = ExitStack()

    def of(self, entry: TaskEntry) -> OutputFile:
        """Return the file of a task.

        Raises: UsageError if it cannot be written
        """
        path = expand(self._pattern, OutputPlace(*self._job, entry))
        if path not in self._files:
            self._files[path] = OutputFile(path)
            self._open.callback(self._files[path].close)
        return self._files[path]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._open.close()
