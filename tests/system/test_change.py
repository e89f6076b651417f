"""Administrative commands on a system that jobs want, from several processes at once."""

import errno
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest
from support.jobs import STALL_S, until

from csrun.base import stored
from csrun.base.errors import CsrunError, UsageError
from csrun.base.mode import ExecutionMode
from csrun.context import site_state_dir
from csrun.site import load
from csrun.system import (
    Command,
    Power,
    SystemBusyError,
    SystemState,
    acquire,
    change,
    drain,
    load_state,
    save_state,
)

PIPELINED, STREAMING = ExecutionMode.PIPELINED, ExecutionMode.WEIGHT_STREAMING
SITE = load("local")
SYSTEM = SITE.systems[0]
SLOW = msgspec.structs.replace(SYSTEM, boot_s=1000.0)
pytestmark = pytest.mark.usefixtures("state")


def test_a_job_keeps_its_system_from_standby_and_is_named() -> None:
    with acquire(SITE, SYSTEM, PIPELINED, "job 7"):
        for command in (Command.STANDBY, Command.REBOOT):
            with pytest.raises(SystemBusyError, match=rf"job 7 \(process {os.getpid()}\)"):
                change(SITE, SYSTEM, command)
        assert load_state(SITE, SYSTEM).power is Power.ACTIVE
    assert change(SITE, SYSTEM, Command.STANDBY) == SystemState(Power.STANDBY, PIPELINED)


def test_a_lock_without_room_for_its_holder_is_not_held(monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(fd: int, data: bytes, offset: int) -> int:
        if data.startswith((b"system", b"job")):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return len(data)

    attempts = [
        lambda: change(SITE, SYSTEM, Command.STANDBY),
        lambda: drain(SITE, SYSTEM, Command.STANDBY, pytest.fail),
        lambda: acquire(SITE, SYSTEM, PIPELINED, "job 1"),
    ]
    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", pwrite)
        for attempt in attempts:
            with pytest.raises(CsrunError, match="cannot be locked: No space left on device"):
                attempt()
    change(SITE, SYSTEM, Command.STANDBY)
    change(SITE, SYSTEM, Command.ACTIVATE)
    acquire(SITE, SYSTEM, PIPELINED, "job 1", pytest.fail).release()


def test_a_boot_takes_the_time_of_the_site_file_and_nothing_else_meanwhile() -> None:
    change(SITE, SLOW, Command.STANDBY)
    before = time.time()
    state = change(SITE, SLOW, Command.ACTIVATE)
    assert state.power is Power.BOOTING
    assert before + 1000 <= state.boot_ends <= time.time() + 1000
    for command in Command:
        with pytest.raises(UsageError, match="BOOTING; wait until it is ACTIVE"):
            change(SITE, SLOW, command)


def test_a_boot_without_time_is_over_at_once() -> None:
    assert change(SITE, SYSTEM, Command.REBOOT) == SystemState(Power.ACTIVE, PIPELINED)


def in_thread(work: object) -> threading.Thread:
    thread = threading.Thread(target=work)  # type: ignore[arg-type]
    thread.start()
    return thread


def test_a_drain_waits_for_the_holder_and_lets_nobody_pass() -> None:
    lease = acquire(SITE, SYSTEM, PIPELINED, "job 1")
    waits: list[str] = []
    refusals: list[str] = []
    holders: list[str] = []

    def want() -> None:
        with pytest.raises(CsrunError) as refused:
            acquire(SITE, SYSTEM, PIPELINED, "job 2", waits.append)
        refusals.append(str(refused.value))

    waiter = in_thread(want)
    until(lambda: bool(waits))
    drainer = in_thread(lambda: drain(SITE, SYSTEM, Command.STANDBY, holders.append))
    until(lambda: len(waits) > 1)
    assert load_state(SITE, SYSTEM).power is Power.ACTIVE
    lease.release()
    drainer.join()
    waiter.join()
    assert waits[0].startswith("held by job 1 (process")
    assert waits[1].startswith("closed to jobs by system standby --force (process")
    assert set(holders) == {f"job 1 (process {os.getpid()})"}
    assert "cs2-01 is in STANDBY" in refusals[0]
    assert load_state(SITE, SYSTEM).power is Power.STANDBY


def test_a_drain_that_is_given_up_lets_jobs_come_again() -> None:
    def give_up(holder: str) -> None:
        raise KeyboardInterrupt

    with acquire(SITE, SYSTEM, PIPELINED, "job 1"), pytest.raises(KeyboardInterrupt):
        drain(SITE, SYSTEM, Command.STANDBY, give_up)
    with acquire(SITE, SYSTEM, PIPELINED, "job 2"):
        assert load_state(SITE, SYSTEM).power is Power.ACTIVE


def test_one_drain_at_a_time() -> None:
    def second(holder: str) -> None:
        drain(SITE, SYSTEM, Command.REBOOT, second)

    with (
        acquire(SITE, SYSTEM, PIPELINED, "job 1"),
        pytest.raises(
            CsrunError, match=r"system standby --force \(process \d+\) is already waiting"
        ),
    ):
        drain(SITE, SYSTEM, Command.STANDBY, second)


def test_a_job_waits_for_a_boot_and_is_told() -> None:
    save_state(SITE, SYSTEM, SystemState(Power.BOOTING, PIPELINED, time.time() + 1000))
    waits: list[str] = []

    def told(obstacle: str) -> None:
        waits.append(obstacle)
        save_state(SITE, SYSTEM, SystemState(Power.BOOTING, PIPELINED, time.time()))

    with acquire(SITE, SYSTEM, PIPELINED, "job 1", told):
        assert waits == ["which is BOOTING"]


KILLS = 40
SEED = 5


def change_for_ever() -> None:
    while True:
        for mode in ExecutionMode:
            change(SITE, SYSTEM, Command.STANDBY)
            change(SITE, SYSTEM, Command.CONFIGURE, mode)
            change(SITE, SYSTEM, Command.ACTIVATE)


def kill_at_random_time(chance: random.Random) -> None:
    """Kill a forked process at a random time; a new interpreter would start too slowly."""
    if (child := os.fork()) == 0:
        try:
            change_for_ever()
        finally:
            os._exit(1)
    time.sleep(chance.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_a_kill_at_any_point_leaves_a_whole_state_and_no_lock() -> None:
    chance = random.Random(SEED)
    path = site_state_dir("local") / "systems" / "cs2-01.json"
    for _ in range(KILLS):
        kill_at_random_time(chance)
        if path.exists():
            stored.read(path, SystemState, "the state")
        if load_state(SITE, SYSTEM).power is Power.STANDBY:
            change(SITE, SYSTEM, Command.ACTIVATE)
        with acquire(SITE, SYSTEM, load_state(SITE, SYSTEM).mode, "job 1", pytest.fail):
            pass
    assert not list(Path(path.parent).glob("*.damaged-*"))


TOGGLE = """
import sys
from csrun.base.errors import UsageError
from csrun.site import load
from csrun.system import Command, change
site = load("local")
done = 0
for _ in range(60):
    for command in (Command.STANDBY, Command.ACTIVATE):
        try:
            change(site, site.systems[0], command)
            done += 1 if command is Command.STANDBY else -1
        except UsageError:
            pass
print(done)
"""


def test_changes_of_concurrent_shells_are_one_after_the_other() -> None:
    """Each transition is made by one of them: those to and from STANDBY balance."""
    command = [sys.executable, "-c", TOGGLE]
    shells = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    made = [int(shell.communicate(timeout=STALL_S)[0]) for shell in shells]
    assert [shell.returncode for shell in shells] == [0, 0, 0]
    assert sum(made) == (load_state(SITE, SYSTEM).power is Power.STANDBY)
