"""A command's standard streams, one of which may be closed, full, or read by nobody."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from csrun.base.errors import OutputError


def prepare() -> None:
    """Put something into the place of closed streams, and let a failing output be told apart.

    The next file to be opened would get a closed stream's descriptor, and the output with it.
    """
    if sys.stdout is not None:
        sys.stdout = _checked(sys.stdout)
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  for the process's life


@contextmanager
def output_to_errors() -> Iterator[None]:
    """What this process and those that it starts write to standard output goes to standard error:
    for a command whose own answer there is for a program.
    """
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)


class _Output(io.FileIO):
    """Standard output; its failure is an error of its own kind, once, then it takes anything."""

    def write(self, data: Any, /) -> int:
        try:
            return super().write(data)
        except OSError as error:
            self._discard()
            raise OutputError(error) from error

    def _discard(self) -> None:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self.fileno())
        os.close(null)


def _checked(stream: TextIO) -> TextIO:
    """The stream as one whose failure is told; what its encoding lacks becomes a `?`."""
    raw = _Output(stream.fileno(), "w", closefd=False)
    errors = "replace" if stream.errors == "strict" else stream.errors
    return io.TextIOWrapper(
        io.BufferedWriter(raw), stream.encoding, errors, line_buffering=stream.isatty()
    )
