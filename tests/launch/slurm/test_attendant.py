"""An attendant as a process, its launcher's mail written here, other commands for Slurm's."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from csrun.base import stored
from csrun.context import JobFile, Role, TaskEntry
from csrun.context.job import ended_file
from csrun.jobs.folder import JobFolder
from csrun.launch.slurm import mail
from csrun.launch.slurm.alone import LOST
from csrun.launch.slurm.attendant import PLAN_FILE
from csrun.launch.slurm.mail import Heartbeat, LetGo, StartAll

SILENCE_S = 0.3
CPU = min(os.sched_getaffinity(0))
ENTRIES = tuple(TaskEntry(rank, Role.TASK, f"node{rank + 1}", rank, 0, (CPU,)) for rank in range(2))
JOB = JobFile(7, None, ("true",), "/", "local", 2, 1, ENTRIES, grace_s=5.0)
ENDS_WELL, FAILS, STAYS = ("true",), ("sh", "-c", "exit 3"), ("sleep", "600")


class Place:
    """A job's folder, and the attendant of its first node."""

    def __init__(self, path: Path) -> None:
        self.folder = JobFolder(path / "job")
        self.calls = path / "calls"
        self._programs = path / "bin"
        for folder in (self.folder.path, self.folder.path / mail.MAIL_DIR, self._programs):
            folder.mkdir()
        self.folder.furnish()
        stored.write(self.folder.path / PLAN_FILE, JOB, durable=False)
        for name in ("scancel", "scontrol"):
            program = self._programs / name
            program.write_text(f'#!/bin/sh\necho {name} "$@" >> {self.calls}\n')
            program.chmod(0o755)
        self.calls.touch()
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, heartbeat: Heartbeat, *command: str, **changes: object) -> None:
        """The attendant, and its task when there is a command for it."""
        self.say(heartbeat)
        if command:
            self.say(StartAll(msgspec.structs.replace(JOB, command=command, **changes), False))
        variables = {
            "SLURM_PROCID": "0",
            "SLURMD_NODENAME": "node1",
            "SLURM_JOB_ID": "7",
            "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
            "PATH": f"{self._programs}:{os.environ['PATH']}",
        }
        self.process = subprocess.Popen(
            [sys.executable, "-m", "csrun.launch.slurm.attendant", str(self.folder.path), ""],
            env=os.environ | variables,
            stdout=subprocess.DEVNULL,
        )
        reader = mail.Reader(
            mail.node_box(self.folder.path, 0), msgspec.msgpack.Decoder(mail.FromAttendant)
        )
        self.until(lambda: bool(reader.read()))

    def say(self, message: msgspec.Struct) -> None:
        mail.post(mail.launcher_box(self.folder.path), message)

    def until(self, condition: Callable[[], bool]) -> None:
        """Have it look at its mail, until this holds."""
        assert self.process is not None
        deadline_s = time.monotonic() + 60.0
        while not condition():
            assert time.monotonic() < deadline_s, "it never came"
            if self.folder_is_read():
                self.process.send_signal(signal.SIGURG)
            time.sleep(0.05)

    def folder_is_read(self) -> bool:
        """From here on the bell is heeded."""
        return (self.folder.path / "link-0.sock").exists()

    def left(self) -> int:
        """The exit code of the attendant, when it has left."""
        assert self.process is not None
        process = self.process
        self.until(lambda: process.poll() is not None)
        return process.wait()

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    place = Place(tmp_path)
    yield place
    if place.process is not None and place.process.poll() is None:
        place.process.kill()
        place.process.wait()


FREES = Heartbeat(SILENCE_S, frees_job=True)
TOLD = f"scontrol update JobId=7 Comment={LOST}"


def test_a_failure_without_a_launcher_frees_the_job(place: Place) -> None:
    place.start(FREES, *FAILS)
    assert place.left() == 3
    assert mail.given_up(place.folder.path).exists()
    assert place.called() == [TOLD, "scancel 7"]
    assert LOST in place.folder.log("srun").read_text()


def test_the_first_one_waits_for_the_end_of_all_and_frees_the_job(place: Place) -> None:
    place.start(FREES, *ENDS_WELL)
    place.until(lambda: TOLD in place.called())
    assert ended_file(place.folder.path, 0).exists()
    assert place.process is not None
    assert place.process.poll() is None
    place.folder.mark_ended(1)
    assert place.left() == 0
    assert place.called() == [TOLD, "scancel 7"]


def test_a_job_that_another_has_left_is_ended(place: Place) -> None:
    place.start(FREES, *STAYS)
    place.until(lambda: TOLD in place.called())
    mail.given_up(place.folder.path).touch()
    assert place.left() == 128 + signal.SIGTERM


def test_a_task_that_lives_is_ended_at_the_limit_alone(place: Place) -> None:
    place.start(FREES, *STAYS, time_limit_s=1)
    assert place.left() == 128 + signal.SIGTERM
    assert place.called() == [TOLD, "scancel 7"]


def test_a_launcher_that_is_lost_before_it_began(place: Place) -> None:
    place.start(FREES)
    assert place.left() == 1
    assert place.called() == ["scancel 7"]


def test_a_job_that_is_not_its_own_is_left_to_its_owner(place: Place) -> None:
    place.start(Heartbeat(SILENCE_S, frees_job=False), *FAILS)
    assert place.left() == 3
    assert place.called() == [TOLD]


def test_who_frees_no_job_waits_for_nobody(place: Place) -> None:
    place.start(Heartbeat(SILENCE_S, frees_job=False), *ENDS_WELL, max_restarts=1)
    assert place.left() == 0
    assert place.called() == [TOLD]


def test_a_launcher_that_is_heard_decides(place: Place) -> None:
    place.start(Heartbeat(60.0, frees_job=True), *FAILS)
    reader = mail.Reader(
        mail.node_box(place.folder.path, 0), msgspec.msgpack.Decoder(mail.FromAttendant)
    )
    place.until(lambda: "TaskEnded" in [type(said).__name__ for said in reader.read()])
    assert place.process is not None
    assert place.process.poll() is None
    place.say(LetGo(exit_code=3))
    assert place.left() == 3
    assert place.called() == []
