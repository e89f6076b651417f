"""Leases and locks: exclusive, in order, released when their holder ends."""

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
    acquire,
    acquire_all,
    holder_of,
    is_held,
    save_state,
    try_lock,
)
from csrun.system.state_files import lease_file, queue_of

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


def next_line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


@pytest.mark.usefixtures("state")
def test_a_lease_dies_with_its_holder_and_the_next_in_the_queue_gets_it() -> None:
    with start_holder("job 1") as first:
        assert next_line(first) == "holds"
        with start_holder("job 2") as second:
            assert next_line(second).startswith(f"waits, held by job 1 (process {first.pid})")
            first.kill()
            assert next_line(second) == "holds"
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
    assert not queue_of(CLUSTER, first).holders()


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
