"""Standard output and standard error of a command, and their failures."""

import io
import os
import select
import sys
from pathlib import Path
from typing import Any, TextIO

from csrun.base.errors import OutputError


class _StandardOutput(io.FileIO):
    """Standard output; its failure is an error of its own kind, once, then it takes anything."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _redirect(self.fileno(), Path(os.devnull))
            raise OutputError(error) from error


class _StandardError(io.FileIO):
    """Standard error; once nobody reads it, what is written goes to the fallback file."""

    fallback = Path(os.devnull)

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            _redirect(self.fileno(), self.fallback)
            return super().write(data)


def prepare() -> None:
    """Put something into the place of closed streams, and wrap those that are open.

    The next file to be opened would get a closed stream's descriptor, and the output with it.
    """
    if sys.stdout is not None:
        sys.stdout = _wrapped(sys.stdout, _StandardOutput)
    if sys.stderr is not None:
        sys.stderr = _wrapped(sys.stderr, _StandardError)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  for the process's life


def flush_output() -> None:
    """Write what standard output has buffered: at the interpreter's exit a failure is lost.

    Raises: OutputError when it takes no more; it takes anything from then on
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _redirect(sys.stdout.fileno(), Path(os.devnull))
        raise OutputError(error) from error


def failed_output(error: BaseException) -> OutputError | None:
    """The error of a standard output that takes no more, as far as that can be found.

    `error` is what has ended the script: the buffer may hold nothing of what could not be written.
    """
    try:
        flush_output()
    except OutputError as failure:
        return failure
    if isinstance(error, BrokenPipeError) and sys.stdout is not None and _is_unread():
        return OutputError(error)
    return None


def _is_unread() -> bool:
    """True if standard output is a pipe that nobody reads any more."""
    pipe = select.poll()
    pipe.register(sys.stdout.fileno(), select.POLLOUT)
    return any(events & select.POLLERR for _, events in pipe.poll(0))


def keep_errors_in(path: Path) -> None:
    """From now on, what standard error does not take any more is appended to this file."""
    _StandardError.fallback = path


def _wrapped(stream: TextIO, kind: type[io.FileIO]) -> TextIO:
    """The stream as one of this kind; what its encoding lacks becomes a `?`."""
    raw = kind(stream.fileno(), "w", closefd=False)
    errors = "replace" if stream.errors == "strict" else stream.errors
    is_by_line = stream.isatty() or kind is _StandardError
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, errors, line_buffering=is_by_line
    )


def _redirect(descriptor: int, path: Path) -> None:
    """Let a descriptor be that of a file; the null device where it cannot be opened."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    try:
        target = os.open(path, flags, 0o600)
    except OSError:
        target = os.open(os.devnull, os.O_WRONLY)
    os.dup2(target, descriptor)
    os.close(target)
