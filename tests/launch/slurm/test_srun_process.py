"""A step as its launcher sees it, with a shell in place of srun."""

import itertools
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from support.jobs import STALL_S

from csrun.context import JobFile, Role, TaskEntry
from csrun.jobs.folder import JobFolder
from csrun.launch.process.protocol import SignalTasks, StartTask, Stopped, TaskEnded
from csrun.launch.slurm import srun_process
from csrun.launch.slurm.mailbox import (
    MailboxReader,
    Outbox,
    StartAll,
    ToNodeAgents,
    launcher_mailbox,
    node_mailbox,
)

TASK = StartTask(0, ("true",))
KILLED = TaskEnded(TASK.name, -signal.SIGKILL, 1.0)
SILENCE_S = 0.05
JOB = JobFile(
    7, None, ("true",), "/", "local", 1, 1, (TaskEntry(0, Role.TASK, "node1", 0, 0, (0,)),)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    monkeypatch.setattr(srun_process, "_scancel", lambda *arguments: None)
    monkeypatch.setattr(srun_process, "SILENCE_S", SILENCE_S)
    (tmp_path / "logs").mkdir()
    return JobFolder(tmp_path)


def started(folder: JobFolder, script: str) -> srun_process.SrunProcess:
    running = srun_process.SrunProcess(("sh", "-c", script), folder, 1)
    running.job = JOB
    running.send(TASK)
    return running


def test_a_task_that_was_killed_and_starts_again_is_not_taken_for_a_silent_one(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(srun_process, "SILENCE_S", 60.0)
    running = started(folder, "echo; exec sleep 60")
    try:
        running.send(SignalTasks((TASK.name,), signal.SIGKILL))
        Outbox(node_mailbox(folder.path, 0)).post(KILLED)
        (ended,) = running.receive() or ()
        assert isinstance(ended, TaskEnded)
        assert not ended.is_lost
        running.send(TASK)
        assert running._silence is None  # nothing waits any more for it to speak
        assert running._process.poll() is None
    finally:
        running.cancel()


def test_a_task_of_which_nothing_is_heard_is_lost_with_its_place(folder: JobFolder) -> None:
    running = started(folder, "exit 1")
    (ended,) = running.receive() or ()
    assert isinstance(ended, TaskEnded)
    assert ended.is_lost
    assert running.end() == 1


def test_an_order_that_has_no_room_is_given_when_it_has(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(srun_process.orphaned_node, "HEARTBEAT_S", 0.02)
    box = launcher_mailbox(folder.path)
    running = srun_process.SrunProcess(("sleep", "60"), folder, 1)
    running.job = JOB
    try:
        with no_room():
            running.send(TASK)
        assert f"{box}: job messages cannot be written: " in capsys.readouterr().err
        reader = MailboxReader(box, msgspec.msgpack.Decoder(ToNodeAgents))
        deadline_s = time.monotonic() + STALL_S
        while StartAll(JOB, False) not in reader.read():
            assert time.monotonic() < deadline_s
            time.sleep(0.01)
    finally:
        running.cancel()


def test_tasks_whose_end_cannot_be_ordered_end_with_srun(
    folder: JobFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    """The message about it is captured in memory, as no file can grow."""
    running = started(folder, "exec sleep 60")
    with no_room():
        running.send(SignalTasks((TASK.name,), signal.SIGKILL))
        assert running._process.wait(timeout=STALL_S) == -signal.SIGTERM
    running.end()


def test_a_task_that_ended_after_a_stop_of_its_node_ended_after_the_first_one(
    folder: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever this machine's clocks show, and though Slurm signals the node once more."""
    ticks = itertools.count(2e9)  # read one after the other, as in a process that waits between
    monkeypatch.setattr(time, "time", lambda: next(ticks))
    running = started(folder, "echo; exec sleep 60")
    try:
        box = Outbox(node_mailbox(folder.path, 0))
        for message in (
            Stopped(signal.SIGTERM, 1000.0),
            TaskEnded(TASK.name, -signal.SIGTERM, 1000.5),
            Stopped(signal.SIGTERM, 1001.0),
        ):
            box.post(message)
        stop, end = running.receive() or ()
        assert isinstance(stop, Stopped)
        assert isinstance(end, TaskEnded)
        assert end.time_s - stop.time_s == pytest.approx(0.5)
    finally:
        running.cancel()


@contextmanager
def no_room() -> Iterator[None]:
    """Limit the file size of this process, as on a full disk."""
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
