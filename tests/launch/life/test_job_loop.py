"""The loop of a job, with a fake task server that records how the job ended."""

import getpass
import os
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

from csrun.base.errors import CsrunError
from csrun.context import JobFile, Role, TaskEntry, TaskReport, TaskReportKind
from csrun.context.job import peer_name
from csrun.jobs import folder as job_folder
from csrun.jobs.folder import JobFolder
from csrun.jobs.record import Outcome, RecordState
from csrun.launch.life import job_loop
from csrun.launch.life.job_loop import JobLoop
from csrun.launch.process.protocol import SignalTasks, TaskEnded, ToLauncher, ToServer
from csrun.launch.process.task_output import TaskOutput

ENTRIES = tuple(TaskEntry(rank, Role.TASK, "node1", 0, rank, (rank,)) for rank in range(2))
NAMES = ("rank-00000", "rank-00001")
ENDS_WELL = TaskEnded("rank-00000", 0, 1.0)
FAILS = TaskEnded("rank-00001", 7, 2.0)
WANTED_RANK_0 = TaskReport(
    1, TaskReportKind.PEER_LOST, "lost rank 0", "", 1, 2.0, 0, lost=peer_name(Role.TASK, 0, None)
)
MISSES_RANK_0 = TaskEnded("rank-00001", 1, 2.0, WANTED_RANK_0)


class Server:
    """Task server whose tasks have ended so; records the outcomes of the job."""

    name = "the server"

    def __init__(self, ends: Sequence[TaskEnded]) -> None:
        self._ends: list[ToLauncher] = list(ends)
        self._bell = os.eventfd(1, os.EFD_CLOEXEC)
        self.outcomes: list[Outcome | None] = []
        self.asked = 0

    def fileno(self) -> int:
        return self._bell

    def send(self, message: ToServer) -> None:
        pass

    def receive(self) -> list[ToLauncher] | None:
        os.eventfd_read(self._bell)
        return self._ends

    def end(self, outcome: Outcome | None = None) -> int:
        self.outcomes.append(outcome)
        return 0

    def describe_stop(self) -> str:
        self.asked += 1
        return "preempted by Slurm"

    def describe_loss(self, exit_code: int, folder: JobFolder) -> str:
        return ""

    def close(self) -> None:
        os.close(self._bell)


@pytest.fixture
def signals() -> Iterator[socket.socket]:
    reader, writer = socket.socketpair()
    with reader, writer:
        yield reader


@pytest.fixture
def cleaned(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """List with an entry for each time that the launcher's descendants were killed."""
    done: list[str] = []
    monkeypatch.setattr(job_loop, "kill_descendants", lambda: done.append("killed"))
    return done


class Obedient(Server):
    """Task server whose tasks end on request."""

    def __init__(self) -> None:
        super().__init__([TaskEnded(name, -signal.SIGTERM, 9e9) for name in NAMES])
        os.eventfd_read(self._bell)

    def send(self, message: ToServer) -> None:
        if isinstance(message, SignalTasks):
            os.eventfd_write(self._bell, 1)


def loop_of(
    path: Path, server: Server, signals: socket.socket, **changes: object
) -> tuple[JobLoop, JobFolder]:
    folder = JobFolder(path)
    job = JobFile(1, None, ("true",), "/", "local", 1, 1, ENTRIES, grace_s=1.0)
    job = msgspec.structs.replace(job, **changes)
    folder.prepare(job)
    return JobLoop(job, folder, server, signals, TaskOutput()), folder


@pytest.mark.parametrize(("second", "code"), [(FAILS, 7), (MISSES_RANK_0, 1)], ids=["7", "early"])
def test_a_restart_that_cannot_be_made_is_a_failure_to_the_server_too(
    tmp_path: Path, signals: socket.socket, cleaned: list[str], second: TaskEnded, code: int
) -> None:
    server = Server((ENDS_WELL, second))
    loop, folder = loop_of(tmp_path, server, signals, max_restarts=1)
    (folder.path / "ended").rmdir()
    (folder.path / "ended").touch()
    with pytest.raises(CsrunError, match="no restart after") as refusal:
        loop.run()
    server.close()
    assert refusal.value.exit_code == code
    (told,) = server.outcomes
    assert told is not None
    assert (told.state, told.exit_code) == (RecordState.FAILED, code)
    assert cleaned == ["killed"]


def test_the_time_limit_is_the_jobs_own(
    tmp_path: Path, signals: socket.socket, cleaned: list[str]
) -> None:
    server = Obedient()
    loop, _ = loop_of(tmp_path, server, signals, time_limit_s=1)
    outcome = loop.run()
    server.close()
    assert (outcome.state, outcome.exit_code) == (RecordState.TIMEOUT, 143)
    assert cleaned == ["killed"]


@pytest.mark.parametrize(("is_cancelled", "asked"), [(False, 1), (True, 0)])
def test_the_scheduler_is_asked_why_unless_a_user_has_cancelled(
    tmp_path: Path, cleaned: list[str], is_cancelled: bool, asked: int
) -> None:
    server = Obedient()
    signals, sender = socket.socketpair()
    with signals, sender:
        loop, folder = loop_of(tmp_path, server, signals)
        if is_cancelled:
            with folder.recording_cancellation("csctl cancel"):
                sender.send(bytes([signal.SIGTERM]))
        else:
            sender.send(bytes([signal.SIGTERM]))
        outcome = loop.run()
    server.close()
    cancelled = f"cancelled by {getpass.getuser()} (csctl cancel)"
    assert outcome.cause == (cancelled if is_cancelled else "preempted by Slurm")
    assert server.asked == asked


def test_a_disk_that_does_not_answer_leaves_nothing_alive(
    tmp_path: Path,
    signals: socket.socket,
    cleaned: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The cause of a failure is read from the folder's disk after all processes have ended."""

    def refuse(path: Path) -> None:
        raise OSError(5, "Input/output error")

    server = Server((ENDS_WELL, FAILS))
    loop, _ = loop_of(tmp_path, server, signals)
    monkeypatch.setattr(job_folder.os, "statvfs", refuse)
    outcome = loop.run()
    server.close()
    assert (outcome.state, outcome.exit_code) == (RecordState.FAILED, 7)
    assert [told.exit_code for told in server.outcomes if told is not None] == [7]
    assert cleaned == ["killed"]
    assert "rank 1 (task) on node1 ended with exit code 7" in capsys.readouterr().err


def test_an_error_at_the_servers_end_leaves_nothing_alive(
    tmp_path: Path, signals: socket.socket, cleaned: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(outcome: Outcome | None = None) -> int:
        raise CsrunError("the server does not end")

    server = Server((ENDS_WELL, FAILS))
    loop, _ = loop_of(tmp_path, server, signals)
    monkeypatch.setattr(server, "end", fail)
    with pytest.raises(CsrunError, match="does not end"):
        loop.run()
    server.close()
    assert cleaned == ["killed"]
