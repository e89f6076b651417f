"""A step as its launcher sees it, with a shell in srun's place."""

import signal
import time
from pathlib import Path

import pytest

from csrun.context import JobFile, Role, TaskEntry
from csrun.jobs.folder import JobFolder
from csrun.launch.process.protocol import SignalTasks, StartTask, TaskEnded
from csrun.launch.slurm import step
from csrun.launch.slurm.mail import node_box, post

TASK = StartTask(0, ("true",))
KILLED = TaskEnded(TASK.name, -signal.SIGKILL, 1.0)
SILENCE_S = 0.05
JOB = JobFile(
    7, None, ("true",), "/", "local", 1, 1, (TaskEntry(0, Role.TASK, "node1", 0, 0, (0,)),)
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> JobFolder:
    monkeypatch.setattr(step, "_scancel", lambda *arguments: None)
    monkeypatch.setattr(step, "SILENCE_S", SILENCE_S)
    (tmp_path / "logs").mkdir()
    return JobFolder(tmp_path)


def started(folder: JobFolder, script: str) -> step.Step:
    running = step.Step(("sh", "-c", script), folder, 1)
    running.job = JOB
    running.send(TASK)
    return running


def test_a_task_that_was_killed_and_starts_again_is_not_taken_for_a_silent_one(
    folder: JobFolder,
) -> None:
    running = started(folder, "echo; exec sleep 60")
    try:
        running.send(SignalTasks((TASK.name,), signal.SIGKILL))
        post(node_box(folder.path, 0), KILLED)
        (ended,) = running.receive() or ()
        assert isinstance(ended, TaskEnded)
        assert not ended.is_lost
        running.send(TASK)
        time.sleep(6 * SILENCE_S)
        assert running._process.poll() is None
    finally:
        running.cancel()


def test_a_task_of_which_nothing_is_heard_is_lost_with_its_place(folder: JobFolder) -> None:
    running = started(folder, "exit 1")
    (ended,) = running.receive() or ()
    assert isinstance(ended, TaskEnded)
    assert ended.is_lost
    assert running.end() == 1
