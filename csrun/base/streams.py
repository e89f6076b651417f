"""Standard output and standard error of a command, and their failures."""

import io
import os
import select
import sys
from pathlib import Path
from typing import Any, TextIO

from csrun.base.errors import OutputError


class _StandardOutput(io.FileIO):
    """Standard output. The first failed write raises OutputError; later writes are dropped."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            _redirect(self.fileno(), Path(os.devnull))
            raise OutputError(error) from error


class _StandardError(io.FileIO):
    """Standard error; after its reader is gone, output goes to the fallback file."""

    fallback = Path(os.devnull)

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError:
            _redirect(self.fileno(), self.fallback)
            return super().write(data)


def prepare() -> None:
    """Wrap the standard streams, and open a replacement for closed ones.

    Otherwise the next opened file would get a closed stream's descriptor, and the output with it.
    """
    if sys.stdout is not None:
        sys.stdout = _wrapped(sys.stdout, _StandardOutput)
    if sys.stderr is not None:
        sys.stderr = _wrapped(sys.stderr, _StandardError)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  for the process's life


def flush_output() -> None:
    """Flush standard output. A failure at the interpreter's exit would be lost.

    Raises: OutputError if the write fails; later writes are dropped
    """
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _redirect(sys.stdout.fileno(), Path(os.devnull))
        raise OutputError(error) from error


def failed_output(error: BaseException) -> OutputError | None:
    """Return the error of a standard output that failed, as far as it can be determined.

    error: exception that ended the script; the buffer may no longer hold the text that failed.
    """
    try:
        flush_output()
    except OutputError as failure:
        return failure
    if isinstance(error, BrokenPipeError) and sys.stdout is not None and _is_unread():
        return OutputError(error)
    return None


def _is_unread() -> bool:
    """True if standard output is a pipe without a reader."""
    pipe = select.poll()
    pipe.register(sys.stdout.fileno(), select.POLLOUT)
    return any(events & select.POLLERR for _, events in pipe.poll(0))


def keep_errors_in(path: Path) -> None:
    """From now on, append output that standard error does not accept to this file."""
    _StandardError.fallback = path


def _wrapped(stream: TextIO, kind: type[io.FileIO]) -> TextIO:
    """Wrap a stream in this class; characters that its encoding lacks become `?`."""
    raw = kind(stream.fileno(), "w", closefd=False)
    errors = "replace" if stream.errors == "strict" else stream.errors
    is_by_line = stream.isatty() or kind is _StandardError
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, errors, line_buffering=is_by_line
    )


def _redirect(descriptor: int, path: Path) -> None:
    """Redirect a descriptor to a file, or to the null device if it cannot be opened."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
    try:
        target = os.open(path, flags, 0o600)
    except OSError:
        target = os.open(os.devnull, os.O_WRONLY)
    os.dup2(target, descriptor)
    os.close(target)
