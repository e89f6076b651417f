"""First come, first served: a waiting line of tickets that die with their holders."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import TypeVar

from csrun.system.lock import FileLock, holder_of, is_held, lock, lock_errors, try_lock

POLL_S = 0.2  # short for a person who waits, and nothing for a CPU

Resource = TypeVar("Resource")


@dataclass(frozen=True)
class Ticket:
    """A place in a line: a numbered file, locked by the one who waits."""

    number: int
    held: FileLock

    def leave(self) -> None:
        """Give the place up."""
        self.held.path.unlink(missing_ok=True)
        self.held.release()


@dataclass(frozen=True)
class WaitingLine:
    """A folder of tickets; the lowest number whose holder lives is first."""

    folder: Path

    def join(self, holder: str) -> Ticket:
        """Take the next number.

        Raises: UsageError when no file can be made for it
        """
        with self._mutex(holder):
            number = max(self._numbers(), default=0) + 1
            with lock_errors(self._path(number)):
                taken = lock(self._path(number), holder)
        return Ticket(number, taken)

    def is_first(self, ticket: Ticket) -> bool:
        """True when everyone before `ticket` has left or died."""
        with self._mutex("is_first"):
            return not any(self._lives(n) for n in self._numbers() if n < ticket.number)

    def holders(self) -> list[str]:
        """Who waits, the first in line first; asking leaves no file."""
        if not self.folder.exists():
            return []
        with self._mutex("holders"):
            paths = [self._path(number) for number in self._numbers()]
            return [holder_of(path) for path in paths if is_held(path)]

    def _mutex(self, holder: str) -> FileLock:
        with lock_errors(self.folder / "mutex"):
            return lock(self.folder / "mutex", holder)

    def _numbers(self) -> list[int]:
        names = (path.suffix[1:] for path in self.folder.glob("ticket.*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _path(self, number: int) -> Path:
        return self.folder / f"ticket.{number}"

    def _lives(self, number: int) -> bool:
        abandoned = try_lock(self._path(number), "")
        if abandoned is None:
            return True
        with abandoned:
            abandoned.path.unlink(missing_ok=True)  # its holder may have left just now
        return False


def wait_in_line(
    line: WaitingLine,
    holder: str,
    attempt: Callable[[], Resource | None],
    on_wait: Callable[[], None],
) -> Resource:
    """Take what `attempt` gives as soon as it gives something, in turn.

    `on_wait` is called once, when the first look brings nothing. An exception (Ctrl-C) in here
    leaves the line.
    """
    ticket = line.join(holder)
    try:
        got = attempt() if line.is_first(ticket) else None
        if got is None:
            on_wait()
        while got is None:
            sleep(POLL_S)
            got = attempt() if line.is_first(ticket) else None
        return got
    finally:
        ticket.leave()
