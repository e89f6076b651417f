"""Queues of processes, first come, first served: numbered lock files in a folder."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Protocol, TypeVar

from csrun.system.lock import FileLock, holder_of, is_held, lock, lock_errors, try_lock

POLL_S = 0.2  # seconds: short for a user, and little CPU time

Resource = TypeVar("Resource")


@dataclass(frozen=True)
class Ticket:
    """Place in a queue: a numbered file, locked by the waiting process."""

    number: int
    file_lock: FileLock

    def leave(self) -> None:
        self.file_lock.path.unlink(missing_ok=True)
        self.file_lock.release()


@dataclass(frozen=True)
class TicketQueue:
    """Queue as a folder of tickets; the lowest number with a living holder is first."""

    folder: Path
    shared: bool = False

    def join(self, holder: str) -> Ticket:
        """Take the next number.

        Raises: UsageError if its file cannot be created
        """
        with self.mutex(holder):
            return self.next_ticket(holder)

    def next_ticket(self, holder: str) -> Ticket:
        """Take the next number; the mutex is held."""
        number = max(self._numbers(), default=0) + 1
        with lock_errors(self._path(number)):
            taken = lock(self._path(number), holder, self.shared)
        return Ticket(number, taken)

    def is_first(self, ticket: Ticket) -> bool:
        """True if all processes before `ticket` have left or ended."""
        with self.mutex("is_first"):
            return not any(self._lives(n) for n in self._numbers() if n < ticket.number)

    def holders(self) -> list[str]:
        """Waiting processes in order; the query leaves no file."""
        if not self.folder.exists():
            return []
        with self.mutex("holders"):
            paths = [self._path(number) for number in self._numbers()]
            return [holder_of(path) for path in paths if is_held(path)]

    def mutex(self, holder: str) -> FileLock:
        """Context manager of exclusive access to the queue."""
        with lock_errors(self.folder / "mutex"):
            return lock(self.folder / "mutex", holder, self.shared)

    def _numbers(self) -> list[int]:
        names = (path.suffix[1:] for path in self.folder.glob("ticket.*"))
        return sorted(int(name) for name in names if name.isdecimal())

    def _path(self, number: int) -> Path:
        return self.folder / f"ticket.{number}"

    def _lives(self, number: int) -> bool:
        abandoned = try_lock(self._path(number), "", self.shared)
        if abandoned is None:
            return True
        with abandoned:
            abandoned.path.unlink(missing_ok=True)  # its holder may have left meanwhile
        return False


@dataclass(frozen=True)
class Tickets:
    """Places in several queues."""

    each: tuple[Ticket, ...]

    def leave(self) -> None:
        for ticket in self.each:
            ticket.leave()


@dataclass(frozen=True)
class TicketQueues:
    """Several queues for a process that needs the head of all of them.

    They are joined atomically: two processes have the same order in every queue that both are in,
    so they never wait for each other.
    """

    queues: tuple[TicketQueue, ...]

    def join(self, holder: str) -> Tickets:
        """Take the next number of each.

        Raises: UsageError if a file cannot be created
        """
        in_order = sorted(self.queues, key=lambda queue: queue.folder)
        with ExitStack() as mutexes, ExitStack() as undo:
            # in a fixed order, so that no two processes hold one and wait for the other
            for queue in in_order:
                mutexes.enter_context(queue.mutex(holder))
            tickets = []
            for queue in self.queues:
                tickets.append(queue.next_ticket(holder))
                undo.callback(tickets[-1].leave)
            undo.pop_all()
        return Tickets(tuple(tickets))

    def is_first(self, tickets: Tickets) -> bool:
        """True if all processes before have left or ended, in all queues."""
        pairs = zip(self.queues, tickets.each, strict=True)
        return all(queue.is_first(ticket) for queue, ticket in pairs)


Place = TypeVar("Place", Ticket, Tickets)


class LockQueue(Protocol[Place]):
    """One or several queues; `join` returns the place in them."""

    def join(self, holder: str) -> Place: ...

    def is_first(self, ticket: Place, /) -> bool: ...


def wait_in_queue(
    queue: LockQueue[Place],
    holder: str,
    attempt: Callable[[], Resource | None],
    on_wait: Callable[[], None],
) -> Resource:
    """Wait in a queue until this process is first and `attempt` returns a result; return that.

    on_wait: called once, if the first attempt fails. An exception (Ctrl-C) leaves the queue.
    """
    ticket = queue.join(holder)
    try:
        got = attempt() if queue.is_first(ticket) else None
        if got is None:
            on_wait()
        while got is None:
            sleep(POLL_S)
            got = attempt() if queue.is_first(ticket) else None
        return got
    finally:
        ticket.leave()
