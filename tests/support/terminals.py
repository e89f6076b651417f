"""Pseudo-terminals for tests: a command on the slave's side, the test on the master's."""

import os
import pty
import signal
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from support.jobs import until

READ_BYTES = 1 << 16
SIZE = (30, 120)  # lines, columns


@dataclass
class Terminal:
    """Command in a separate session on a separate terminal."""

    pid: int
    master: int
    shown: bytes = b""
    status: int | None = field(default=None, init=False)

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def wait_for(self, text: str) -> None:
        """Wait until the command has printed this."""
        until(lambda: text.encode() in self.read())

    def exit_code(self) -> int:
        until(self._has_ended)
        assert self.status is not None
        return os.waitstatus_to_exitcode(self.status)

    @property
    def is_cooked(self) -> bool:
        """Whether the terminal echoes and edits lines, as before any program changed it."""
        modes = termios.tcgetattr(self.master)[3]
        return bool(modes & termios.ICANON) and bool(modes & termios.ECHO)

    def _has_ended(self) -> bool:
        self.read()
        pid, status = os.waitpid(self.pid, os.WNOHANG)
        self.status = status if pid else None
        return pid != 0

    def read(self) -> bytes:
        """All output of the command."""
        with suppress(OSError):  # nothing new, or nobody at the other end any more
            self.shown += os.read(self.master, READ_BYTES)
        return self.shown


@contextmanager
def terminal(*argv: str, environment: dict[str, str]) -> Iterator[Terminal]:
    """Run a command on a new terminal, which is hung up at the end."""
    pid, master = pty.fork()
    if pid == 0:
        os.execvpe(argv[0], argv, environment)
    termios.tcsetwinsize(master, SIZE)
    os.set_blocking(master, False)
    opened = Terminal(pid, master)
    try:
        yield opened
    finally:
        os.close(master)
        if opened.status is None:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
