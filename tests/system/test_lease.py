"""Leases and locks: exclusive, in turn, gone with their holder and with nobody else."""

import fcntl
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.jobs import until

from csrun.base.errors import CsrunError, UsageError
from csrun.base.mode import ExecutionMode
from csrun.site import load
from csrun.system import (
    Power,
    SystemState,
    TicketQueue,
    acquire,
    acquire_all,
    holder_of,
    is_held,
    save_state,
    try_lock,
)
from csrun.system.lock import TicketQueues
from csrun.system.state_files import lease_file
from csrun.system.state_files import line_of as line_in

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
SITE = load("local")
SYSTEM = SITE.systems[0]

HOLD = """
import sys
from csrun.site import load
from csrun.system import acquire
site = load("local")
say = lambda who: print(f"waits, {who}", flush=True)
lease = acquire(site, site.systems[0], site.systems[0].mode, sys.argv[1], say)
print("holds", flush=True)
sys.stdin.read()
"""


def start_holder(name: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOLD, name]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.usefixtures("state")
def test_a_lease_dies_with_its_holder_and_the_next_in_line_gets_it() -> None:
    with start_holder("job 1") as first:
        assert line_of(first) == "holds"
        with start_holder("job 2") as second:
            assert line_of(second).startswith(f"waits, held by job 1 (process {first.pid})")
            first.kill()
            assert line_of(second) == "holds"
            second.kill()


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        (SystemState(Power.STANDBY, PIPELINED), CsrunError, "cs2-01 is in STANDBY; a job needs"),
        (SystemState(Power.ACTIVE, STREAMING), UsageError, "cs2-01 is in WEIGHT_STREAMING mode"),
    ],
)
def test_a_system_that_changed_during_the_wait_is_refused_and_free(
    changed: SystemState, error: type[CsrunError], words: str
) -> None:
    first = acquire(SITE, SYSTEM, PIPELINED, "job 1")

    def change(holder: str) -> None:
        save_state(SITE, SYSTEM, changed)
        first.release()

    with pytest.raises(error, match=words):
        acquire(SITE, SYSTEM, PIPELINED, "job 2", change)
    again = try_lock(first.file_lock.path, "job 3")
    assert again is not None
    again.release()


CLUSTER = load("streaming-8")


@pytest.mark.usefixtures("state")
def test_several_systems_are_leased_together_or_not_at_all() -> None:
    first, second, third = CLUSTER.systems[:3]
    other = acquire(CLUSTER, second, STREAMING, "job 1")
    waits = []

    def free_it(name: str, why: str) -> None:
        waits.append((name, why.partition(" (")[0]))
        assert not is_held(lease_file(CLUSTER, first))
        other.release()

    leases = acquire_all(CLUSTER, [first, second, third], STREAMING, "job 2", free_it)
    assert waits == [("cs2-02", "held by job 1")]
    assert [lease.system for lease in leases] == [first, second, third]
    assert all(is_held(lease_file(CLUSTER, system)) for system in (first, second, third))
    for lease in leases:
        lease.release()


@pytest.mark.usefixtures("state")
def test_one_of_several_that_cannot_be_had_leaves_all_free() -> None:
    first, second = CLUSTER.systems[:2]
    save_state(CLUSTER, second, SystemState(Power.STANDBY, STREAMING))
    with pytest.raises(CsrunError, match="cs2-02 is in STANDBY"):
        acquire_all(CLUSTER, [first, second], STREAMING, "job 1")
    assert not is_held(lease_file(CLUSTER, first))
    assert not line_in(CLUSTER, first).holders()


def test_two_jobs_that_want_two_systems_stand_in_one_order(tmp_path: Path) -> None:
    """Whichever they name first: who is second in a line is so in both."""
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


@pytest.mark.usefixtures("state")
def test_a_forked_child_does_not_keep_a_lease() -> None:
    lease = acquire(SITE, SYSTEM, SYSTEM.mode, "job 3")
    ours, theirs = socket.socketpair()
    with ours:
        pid = os.fork()
        if pid == 0:
            ours.close()
            theirs.send(b"lives")  # what a fork does to locks is done by now
            theirs.recv(1)  # until the parent closes its end
            os._exit(0)
        theirs.close()
        assert ours.recv(5) == b"lives"
        lease.release()
        again = try_lock(lease.file_lock.path, "job 4")
    assert os.waitpid(pid, 0)[1] == 0
    assert again is not None
    again.release()


def test_a_lock_is_exclusive_and_says_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with try_lock(path, "job 5 (process 1)") as held:  # type: ignore[union-attr]
        assert held.path == path
        assert try_lock(path, "another") is None
        assert holder_of(path) == "job 5 (process 1)"
    again = try_lock(path, "x")
    assert again is not None
    again.release()
    assert holder_of(path) == "x"


def test_the_line_is_first_come_first_served(tmp_path: Path) -> None:
    line = TicketQueue(tmp_path / "line")
    tickets = [line.join(name) for name in ("a", "b", "c")]
    assert [line.is_first(t) for t in tickets] == [True, False, False]
    tickets[1].file_lock.release()  # b died: its ticket lies there, unlocked
    tickets[0].leave()
    assert line.is_first(tickets[2])
    tickets[2].leave()
    assert not list(line.folder.glob("ticket.*"))


def test_a_file_that_is_no_ticket_has_no_place_in_line(tmp_path: Path) -> None:
    line = TicketQueue(tmp_path / "line")
    line.folder.mkdir()
    (line.folder / "ticket.1~").touch()  # an editor's or a backup's
    ticket = line.join("a")
    assert (ticket.number, line.is_first(ticket), line.holders()) == (1, True, ["a"])
    ticket.leave()


def test_a_ticket_may_leave_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = TicketQueue(tmp_path / "line")
    first, second = line.join("a"), line.join("b")
    flock = fcntl.flock

    def leave_between_open_and_flock(fd: int, operation: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == str(first.file_lock.path):
            first.leave()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", leave_between_open_and_flock)
    assert line.is_first(second)
    second.leave()
    assert not list(line.folder.glob("ticket.*"))
