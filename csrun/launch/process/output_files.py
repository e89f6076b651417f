"""--output: files that get what the tasks of a job write, by srun's patterns."""

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
    # A slash in the job's name would name a folder.
    "x": lambda place: place.job_name.replace("/", "_"),
    "u": lambda place: place.user,
    "t": lambda place: place.entry.rank,
    "n": lambda place: place.entry.node_id,
    "N": lambda place: place.entry.node,
}


def check_pattern(pattern: str) -> None:
    """Look at a pattern before there is a job.

    Raises: UsageError for a field that is none, or a folder that is not there, or in its place
    """
    for match in _FIELD.finditer(pattern):
        if match[2] != "%" and match[2] not in _FIELDS:
            known = ", ".join(f"%{field}" for field in _FIELDS)
            raise UsageError(f"--output: {pattern}: unknown field {match[0]}; known: {known}, %%")
    folder = Path(pattern).parent
    if "%" not in str(folder) and not os.path.isdir(folder):
        raise UsageError(f"--output: {pattern}: no such folder: {folder}; create it with mkdir -p")
    if os.path.isdir(Path(pattern)):  # which an empty one is, too
        example = Path(pattern) / "%j.out"
        raise UsageError(
            f"--output: must be a file, got the folder {Path(pattern)}: name one, e.g. {example}"
        )


def is_of_tasks(pattern: str) -> bool:
    """True when each task, or each node, gets a file of its own."""
    return any(match[2] in _OF_A_TASK for match in _FIELD.finditer(pattern))


def expand(pattern: str, place: OutputPlace) -> Path:
    """The file of a task. A number in a field is the width of a number, with zeros before it.

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
    """A file that takes text as it comes."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file: BinaryIO = path.open("wb", buffering=0)
        except OSError as error:
            raise UsageError(f"--output: {path}: cannot be written: {error.strerror}") from error

    def write(self, data: bytes) -> None:
        """Add text.

        Raises: OutputError when the file takes no more
        """
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            raise OutputError(error, str(self._path)) from error

    def fileno(self) -> int:
        """The descriptor, for a process to write to."""
        return self._file.fileno()

    def close(self) -> None:
        self._file.close()


class OutputFiles:
    """The open files of a job, each once."""

    def __init__(self, pattern: str, job_id: int, job_name: str, user: str) -> None:
        self._pattern = pattern
        self._job = (job_id, job_name, user)
        self._files: dict[Path, OutputFile] = {}
        self._open = ExitStack()

    def of(self, entry: TaskEntry) -> OutputFile:
        """The file of a task.

        Raises: UsageError when it cannot be written
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
