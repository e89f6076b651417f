"""Leases and locks: exclusive, in turn, gone with their holder and with nobody else."""

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from csrun.base.errors import CsrunError, UsageError
from csrun.base.mode import ExecutionMode
from csrun.site import load
from csrun.system import (
    Power,
    SystemState,
    WaitingLine,
    acquire,
    holder_of,
    save_state,
    try_lock,
)

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
    again = try_lock(first.held.path, "job 3")
    assert again is not None
    again.release()


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
        again = try_lock(lease.held.path, "job 4")
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
    line = WaitingLine(tmp_path / "line")
    tickets = [line.join(name) for name in ("a", "b", "c")]
    assert [line.is_first(t) for t in tickets] == [True, False, False]
    tickets[1].held.release()  # b died: its ticket lies there, unlocked
    tickets[0].leave()
    assert line.is_first(tickets[2])
    tickets[2].leave()
    assert not list(line.folder.glob("ticket.*"))


def test_a_file_that_is_no_ticket_has_no_place_in_line(tmp_path: Path) -> None:
    line = WaitingLine(tmp_path / "line")
    line.folder.mkdir()
    (line.folder / "ticket.1~").touch()  # an editor's or a backup's
    ticket = line.join("a")
    assert (ticket.number, line.is_first(ticket), line.holders()) == (1, True, ["a"])
    ticket.leave()


def test_a_ticket_may_leave_while_it_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = WaitingLine(tmp_path / "line")
    first, second = line.join("a"), line.join("b")
    flock = fcntl.flock

    def leave_between_open_and_flock(fd: int, operation: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}") == str(first.held.path):
            first.leave()
        flock(fd, operation)

    monkeypatch.setattr(fcntl, "flock", leave_between_open_and_flock)
    assert line.is_first(second)
    second.leave()
    assert not list(line.folder.glob("ticket.*"))
