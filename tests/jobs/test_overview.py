"""Jobs of a system: its holder, waiting jobs, and progress of the run."""

import subprocess
import sys
from collections.abc import Iterator

import pytest

from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.context import Telemetry, jobs_dir_of
from csrun.jobs.overview import (
    SessionState,
    SystemSession,
    SystemStatus,
    require_session,
    sessions_of,
    telemetry,
)
from csrun.site import load
from csrun.system import Power, try_lock

SITE = load("local")
SYSTEM = SITE.systems[0]
MODE = ExecutionMode.PIPELINED
BUSY = SystemStatus("cs2-01", "127.0.0.1", MODE, Power.ACTIVE, 7, (9, 8))
FREE = SystemStatus("cs2-02", "127.0.0.1", MODE, Power.ACTIVE, None, ())


def test_the_holder_then_those_who_wait_in_their_order() -> None:
    assert sessions_of(BUSY, {7: ("run.py", "ada"), 9: ("other.py", "bob")}) == [
        SystemSession(7, SessionState.RUNNING, "run.py", "ada"),
        SystemSession(9, SessionState.WAITING, "other.py", "bob"),
        SystemSession(8, SessionState.WAITING, None, None),
    ]
    assert sessions_of(FREE, {}) == []


def test_a_job_without_a_session_is_told_which_there_are() -> None:
    require_session(BUSY, 8)
    with pytest.raises(UsageError, match="job 6 has no session on cs2-01; it has: 7, 9, 8"):
        require_session(BUSY, 6)
    with pytest.raises(UsageError, match="job 7 has no session on cs2-02; it has: none"):
        require_session(FREE, 7)


@pytest.fixture
def job_7(state: str) -> Iterator[None]:
    """Job whose folder is held by another process, as by its launcher."""
    path = jobs_dir_of(SITE.name) / "7" / "live.lock"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        held = try_lock(path, f"job 7 (process {process.pid})")
        assert held is not None
        with held:
            yield
        process.kill()


@pytest.mark.usefixtures("job_7")
def test_telemetry_is_of_this_system_and_of_a_job_that_lives() -> None:
    folder = jobs_dir_of(SITE.name) / "7"
    assert telemetry(SITE, SYSTEM) is None
    said = Telemetry(("cs2-01",), "training", 5, 9, None, 1024, "loss 1", 0.0)
    dead = jobs_dir_of(SITE.name) / "6"
    dead.mkdir()
    said.write(dead)
    assert telemetry(SITE, SYSTEM) is None
    said.write(folder)
    assert telemetry(SITE, SYSTEM) == said
    (folder / "telemetry.json").write_bytes(b'{"system": "cs2')
    assert telemetry(SITE, SYSTEM) is None
    Telemetry(("cs2-02",), "training", 5, 9, None, 1024, "loss 1", 0.0).write(folder)
    assert telemetry(SITE, SYSTEM) is None
