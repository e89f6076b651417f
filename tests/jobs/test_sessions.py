"""The jobs on a system, from the locks that they hold."""

import os
import pwd
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from csrun.base.errors import CsrunError, UsageError
from csrun.context import Telemetry, jobs_dir_of
from csrun.jobs.sessions import Session, SessionState, cancel, sessions, telemetry
from csrun.site import load
from csrun.system import WaitingLine, acquire, try_lock
from csrun.system.state_files import line_dir

SITE = load("local")
SYSTEM = SITE.systems[0]
USER = pwd.getpwuid(os.getuid()).pw_name
ME = os.getpid()
pytestmark = pytest.mark.usefixtures("state")


@pytest.fixture
def job_7(state: str) -> Iterator[None]:
    with acquire(SITE, SYSTEM, SYSTEM.mode, "job 7"):
        yield


@pytest.fixture
def launcher(state: str) -> Iterator["subprocess.Popen[bytes]"]:
    """Holds job 7's folder as its launcher does."""
    path = jobs_dir_of(SITE.name) / "7" / "live.lock"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        held = try_lock(path, f"job 7 (process {process.pid})")
        assert held is not None
        with held:
            yield process
        process.kill()


@pytest.mark.usefixtures("job_7")
def test_the_holder_then_those_who_wait_in_their_order() -> None:
    line = WaitingLine(line_dir(SITE, SYSTEM))
    texts = ["job 9 (process 1)", "job 8 (process 999999999)", "somebody"]
    with ExitStack() as stack:
        for text in texts:
            stack.callback(line.join(text).leave)
        dead = line.join("job 6 (process 2)")
        dead.held.release()
        assert sessions(SITE, SYSTEM) == [
            Session(7, SessionState.RUNNING, ME, USER),
            Session(9, SessionState.WAITING, 1, "root"),
            Session(8, SessionState.WAITING, 999999999, None),
        ]
    assert sessions(SITE, SITE.systems[1]) == []


def test_what_has_ended_has_no_session() -> None:
    acquire(SITE, SYSTEM, SYSTEM.mode, "job 7").release()
    assert sessions(SITE, SYSTEM) == []
    with pytest.raises(UsageError, match="job 7 has no session on cs2-01; it has: none"):
        cancel(SITE, SYSTEM, 7)


@pytest.mark.usefixtures("job_7")
@pytest.mark.parametrize("is_stopped", [False, True])
def test_cancel_interrupts_the_launcher(
    is_stopped: bool, launcher: "subprocess.Popen[bytes]"
) -> None:
    with pytest.raises(UsageError, match="job 8 has no session on cs2-01; it has: 7"):
        cancel(SITE, SYSTEM, 8)
    assert launcher.poll() is None
    if is_stopped:
        launcher.send_signal(signal.SIGSTOP)
    assert cancel(SITE, SYSTEM, 7) == launcher.pid
    assert launcher.wait(10) in (-signal.SIGINT, 1, 130)


@pytest.mark.usefixtures("job_7")
def test_a_job_of_another_machine_is_not_ours_to_signal() -> None:
    with pytest.raises(CsrunError, match="job 7 has no launcher on this machine"):
        cancel(SITE, SYSTEM, 7)


@pytest.mark.usefixtures("job_7")
def test_someone_elses_job_is_theirs(
    launcher: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(pid: int, signum: int) -> None:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(os, "kill", refuse)
        with pytest.raises(UsageError, match=f"job 7 is {USER}'s: only its owner can cancel it"):
            cancel(SITE, SYSTEM, 7)
    assert launcher.poll() is None


@pytest.mark.usefixtures("job_7", "launcher")
def test_telemetry_is_the_holders_own_and_of_this_system() -> None:
    folder = jobs_dir_of(SITE.name) / "7"
    assert telemetry(SITE, SYSTEM) is None
    said = Telemetry("cs2-01", "training", 5, 9, None, 1024, "loss 1", 0.0)
    said.write(folder)
    assert telemetry(SITE, SYSTEM) == said
    (folder / "telemetry.json").write_bytes(b'{"system": "cs2')
    assert telemetry(SITE, SYSTEM) is None
    Telemetry("cs2-02", "training", 5, 9, None, 1024, "loss 1", 0.0).write(folder)
    assert telemetry(SITE, SYSTEM) is None
