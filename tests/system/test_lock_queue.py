"""Queues for a lock: first come, first served."""

import fcntl
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.jobs import until

from csrun.system import TicketQueue, is_held
from csrun.system.lock_queue import TicketQueues


def test_two_queues_joined_by_two_processes_have_the_same_order(tmp_path: Path) -> None:
    """For any order in which they name the queues."""
    left, right = TicketQueue(tmp_path / "left"), TicketQueue(tmp_path / "right")
    first, second = TicketQueues((left, right)), TicketQueues((right, left))
    with ThreadPoolExecutor(1) as joining:
        with right.mutex("somebody"):
            joined = joining.submit(first.join, "a")
            until(lambda: is_held(left.folder / "mutex"))
            assert not list(left.folder.glob("ticket.*"))  # in none before it is in all
        one = joined.result()
    two = second.join("b")
    assert (first.is_first(one), second.is_first(two)) == (True, False)
    one.leave()
    assert second.is_first(two)
    two.leave()


def test_a_queue_is_first_come_first_served(tmp_path: Path) -> None:
    queue = TicketQueue(tmp_path / "queue")
    tickets = [queue.join(name) for name in ("a", "b", "c")]
    assert [queue.is_first(t) for t in tickets] == [True, False, False]
    tickets[1].file_lock.release()  # b died: its ticket remains, unlocked
    tickets[0].leave()
    assert queue.is_first(tickets[2])
    tickets[2].leave()
    assert not list(queue.folder.glob("ticket.*"))


def test_a_file_that_is_not_a_ticket_is_ignored(tmp_path: Path) -> None:
    queue = TicketQueue(tmp_path / "queue")
    queue.folder.mkdir()
    (queue.folder / "ticket.1~").touch()  # an editor's or a backup's
    ticket = queue.join("a")
    assert (ticket.number, queue.is_first(ticket), queue.holders()) == (1, True, ["a"])
    ticket.leave()


def test_a_ticket_may_leave_during_a_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = TicketQueue(tmp_path / "queue")
    first, second = queue.join("a"), queue.join("b")
    flock = fcntl.flock

    def leave_between_open_and_flock(fd: int, operation: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == str(first.file_lock.path):
            first.leave()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", leave_between_open_and_flock)
    assert queue.is_first(second)
    second.leave()
    assert not list(queue.folder.glob("ticket.*"))
