"""A node agent as a process, with a test's mailbox and stand-ins for Slurm's commands."""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from support.jobs import until

from csrun.base import stored
from csrun.context import JobFile, Progress, Role, TaskEntry
from csrun.context.job import ended_file
from csrun.jobs.folder import JobFolder
from csrun.launch.process.protocol import SignalTasks, Stopped, TaskEnded, TasksReady
from csrun.launch.slurm import mailbox
from csrun.launch.slurm.job_comment import LOST
from csrun.launch.slurm.mailbox import Heartbeat, ReleaseAgents, StartAll
from csrun.launch.slurm.node_agent import PLAN_FILE

SILENCE_S = 0.3
CPU = min(os.sched_getaffinity(0))
ENTRIES = tuple(TaskEntry(rank, Role.TASK, f"node{rank + 1}", rank, 0, (CPU,)) for rank in range(2))
JOB = JobFile(7, None, ("true",), "/", "local", 2, 1, ENTRIES, grace_s=5.0)
ENDS_WELL, FAILS, STAYS = ("true",), ("sh", "-c", "exit 3"), ("sleep", "600")


PLACE = {
    "SLURM_PROCID": "0",
    "SLURMD_NODENAME": "node1",
    "SLURM_JOB_ID": "7",
    "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1",
}


class Place:
    """Folder of a job, and the node agent of its first node."""

    def __init__(self, path: Path) -> None:
        self.folder = JobFolder(path / "job")
        self.calls = path / "calls"
        self._programs = path / "bin"
        for folder in (self.folder.path, self.folder.path / mailbox.MAIL_DIR, self._programs):
            folder.mkdir()
        self.folder.create_subfolders()
        stored.write(self.folder.path / PLAN_FILE, JOB, durable=False)
        self.comment = path / "comment"
        keep = f"printf '%s\\n' \"${{3#Comment=}}\" > {self.comment}"
        self._program("scancel", f'echo scancel "$@" >> {self.calls}')
        self._program("scontrol", f'echo scontrol "$@" >> {self.calls}', keep)
        self._program("squeue", f"cat {self.comment}")
        self.calls.touch()
        self.comment.write_text("\n")
        self.process: subprocess.Popen[bytes] | None = None

    def _program(self, name: str, *lines: str) -> None:
        program = self._programs / name
        program.write_text("\n".join(["#!/bin/sh", *lines, ""]))
        program.chmod(0o755)

    def start(self, heartbeat: Heartbeat, *command: str, **changes: object) -> None:
        """Start the node agent, and its task if there is a command for it."""
        self.say(heartbeat)
        if command:
            self.say(StartAll(msgspec.structs.replace(JOB, command=command, **changes), False))
        path = f"{self._programs}:{os.environ['PATH']}"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "csrun.launch.slurm.node_agent", str(self.folder.path), ""],
            env=os.environ | PLACE | {"PATH": path},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,  # no file, whose size a test may limit
        )
        reader = mailbox.MailboxReader(
            mailbox.node_mailbox(self.folder.path, 0),
            msgspec.msgpack.Decoder(mailbox.FromNodeAgent),
        )
        self.until(lambda: bool(reader.read()))

    def say(self, message: msgspec.Struct) -> None:
        mailbox.Outbox(mailbox.launcher_mailbox(self.folder.path)).post(message)

    def until(self, condition: Callable[[], bool]) -> None:
        """Make it read its mail until this holds."""
        assert self.process is not None
        deadline_s = time.monotonic() + 60.0
        while not condition():
            assert time.monotonic() < deadline_s, "it never came"
            if self.folder_is_read():
                self.process.send_signal(signal.SIGURG)
            time.sleep(0.05)

    def folder_is_read(self) -> bool:
        """Whether the node agent handles notifications."""
        return (self.folder.path / "link-0.sock").exists()

    def left(self) -> int:
        """Exit code of the node agent, once it has ended."""
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
    if place.process is None:
        return
    place.process.kill()
    place.process.wait()
    assert place.process.stderr is not None
    with place.process.stderr as said:
        os.set_blocking(said.fileno(), False)
        print((said.read() or b"").decode())  # shown where the test fails


FREES = Heartbeat(SILENCE_S, frees_job=True)
TOLD = f"scontrol update JobId=7 Comment={LOST}"


def test_a_failure_without_a_launcher_frees_the_job(place: Place) -> None:
    place.start(FREES, *FAILS)
    assert place.left() == 3
    assert mailbox.abandoned_file(place.folder.path).exists()
    assert place.called() == [TOLD, "scancel 7"]
    assert LOST in place.folder.log("srun").read_text()


def test_the_first_one_waits_for_the_end_of_all_and_frees_the_job(place: Place) -> None:
    place.start(FREES, *ENDS_WELL)
    place.until(lambda: TOLD in place.called())
    place.until(ended_file(place.folder.path, 0).exists)
    assert place.process is not None
    assert place.process.poll() is None
    place.folder.mark_ended(1)
    assert place.left() == 0
    assert place.called() == [TOLD, "scancel 7"]


def test_a_job_that_another_has_left_is_ended(place: Place) -> None:
    place.start(FREES, *STAYS)
    place.until(lambda: TOLD in place.called())
    mailbox.abandoned_file(place.folder.path).touch()
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
    reader = mailbox.MailboxReader(
        mailbox.node_mailbox(place.folder.path, 0), msgspec.msgpack.Decoder(mailbox.FromNodeAgent)
    )
    place.until(lambda: "TaskEnded" in [type(said).__name__ for said in reader.read()])
    assert place.process is not None
    assert place.process.poll() is None
    place.say(ReleaseAgents(exit_code=3))
    assert place.left() == 3
    assert place.called() == []


LATE_S = 0.1  # Slurm signals the processes of a node one after the other


def test_a_stop_is_reported_before_the_task_that_it_ended(place: Place) -> None:
    """Also where Slurm has signalled the task first: else it would have failed by itself."""
    place.start(Heartbeat(60.0, frees_job=True), *STAYS)
    reader = mailbox.MailboxReader(
        mailbox.node_mailbox(place.folder.path, 0), msgspec.msgpack.Decoder(mailbox.FromNodeAgent)
    )
    heard: list[mailbox.FromNodeAgent] = []
    place.until(lambda: any(isinstance(said, TasksReady) for said in heard_of(reader, heard)))
    assert place.process is not None
    (task,) = psutil.Process(place.process.pid).children()
    task.terminate()
    until(lambda: not is_running(task))
    time.sleep(LATE_S)
    place.process.terminate()
    place.until(lambda: any(isinstance(said, TaskEnded) for said in heard_of(reader, heard)))
    stop, end = (said for said in heard if isinstance(said, Stopped | TaskEnded))
    assert isinstance(stop, Stopped)
    assert isinstance(end, TaskEnded)
    assert end.exit_code == -signal.SIGTERM
    assert stop.time_s <= end.time_s


def heard_of(
    reader: "mailbox.MailboxReader[mailbox.FromNodeAgent]", heard: list[mailbox.FromNodeAgent]
) -> list[mailbox.FromNodeAgent]:
    heard += reader.read()
    return heard


def is_running(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_what_is_said_before_there_is_a_job_is_taken_and_dropped(place: Place) -> None:
    """Unread messages would make the node agent poll repeatedly, and fill the queue."""
    place.start(Heartbeat(60.0, frees_job=False))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as stranger:
        stranger.settimeout(20.0)
        stranger.connect(str(place.folder.path / "link-0.sock"))
        for _ in range(2000):  # more than a queue holds
            stranger.send(msgspec.msgpack.encode(Progress("training", 1, 2)))
    place.say(ReleaseAgents())
    assert place.left() == 0


def test_a_damaged_plan_is_not_one_that_is_not_there(place: Place) -> None:
    path = place.folder.path / PLAN_FILE
    path.write_bytes(path.read_bytes().replace(b"node1", b"node3"))
    words = [sys.executable, "-m", "csrun.launch.slurm.node_agent", str(place.folder.path), ""]
    done = subprocess.run(
        words, env=os.environ | PLACE, capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 1
    assert f"csrun: node1: {path}: the job's plan is damaged: its checksum is" in done.stderr
    assert "not found" not in done.stderr


FIRST_CAUSE = """
import os, pathlib, signal, sys, time
from csrun.context import TaskReport, TaskReportKind
rank, reported = int(os.environ["SLURM_PROCID"]), pathlib.Path(sys.argv[1])
if rank == 0:  # the first to fail, and the last but one to end
    signal.signal(signal.SIGTERM, lambda *_: os._exit(5))
    report = TaskReport(0, TaskReportKind.USER_ERROR, "no", "", 5, time.monotonic(), 0)
    report.write(pathlib.Path(os.environ["CSRUN_JOB_DIR"]))
    reported.touch()
if rank == 1:
    while not reported.exists():
        time.sleep(0.01)
    sys.exit(3)
if rank == 2:
    signal.signal(signal.SIGTERM, lambda *_: (time.sleep(0.5), os._exit(143)))
time.sleep(600)
"""


def test_the_exit_code_is_the_first_causes(place: Place) -> None:
    script, reported = place.folder.path / "run.py", place.folder.path / "reported"
    script.write_text(FIRST_CAUSE)
    tasks = tuple(TaskEntry(rank, Role.TASK, "node1", 0, rank, (CPU,)) for rank in range(3))
    job = msgspec.structs.replace(JOB, tasks=tasks, nodes=1)
    stored.write(place.folder.path / PLAN_FILE, job, durable=False)
    place.start(FREES, "python", str(script), str(reported), tasks=tasks, nodes=1)
    assert place.left() == 5


@pytest.mark.parametrize("own", ["", "ada's; best"])
def test_a_launcher_that_is_heard_again_is_not_lost(place: Place, own: str) -> None:
    """The note of its user's request is kept."""
    place.comment.write_text(f"{own}\n")
    place.start(FREES, *STAYS)
    note_of = f"{own}; {LOST}" if own else LOST
    place.until(lambda: place.comment.read_text() == f"{note_of}\n")
    place.say(Heartbeat(60.0, frees_job=True))
    place.until(lambda: place.comment.read_text() == f"{own}\n")
    place.say(SignalTasks(("rank-00000",), signal.SIGKILL))
    place.say(ReleaseAgents())
    assert place.left() == 0
    assert place.called() == [
        f"scontrol update JobId=7 Comment={note_of}",
        f"scontrol update JobId=7 Comment={own}",
    ]


def test_what_had_no_room_is_said_when_it_has(place: Place) -> None:
    """As on a full disk: without the report of a task's end the launcher would count it as lost."""
    place.start(Heartbeat(60.0, frees_job=False))
    box = mailbox.node_mailbox(place.folder.path, 0)
    assert place.process is not None
    pid, whole = place.process.pid, box.read_bytes()
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (len(whole) + 10, resource.RLIM_INFINITY))
    place.say(StartAll(msgspec.structs.replace(JOB, command=ENDS_WELL), False))
    place.until(ended_file(place.folder.path, 0).exists)
    reader = mailbox.MailboxReader(box, msgspec.msgpack.Decoder(mailbox.FromNodeAgent))
    assert [type(said) for said in reader.read()] == [mailbox.NodeReady]
    assert place.process.poll() is None
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
    assert place.left() == 0
    assert [type(said) for said in reader.read()] == [TasksReady, TaskEnded, mailbox.AgentExited]


def test_who_can_say_nothing_for_too_long_leaves(place: Place) -> None:
    place.start(Heartbeat(60.0, frees_job=True))
    box = mailbox.node_mailbox(place.folder.path, 0)
    assert place.process is not None
    limit = (box.stat().st_size + 10, resource.RLIM_INFINITY)
    resource.prlimit(place.process.pid, resource.RLIMIT_FSIZE, limit)
    place.say(StartAll(msgspec.structs.replace(JOB, command=ENDS_WELL), False))
    place.until(ended_file(place.folder.path, 0).exists)
    until_s = time.monotonic() + 60.0
    while place.process.poll() is None and time.monotonic() < until_s:
        place.say(Heartbeat(5 * SILENCE_S, frees_job=True))  # of a launcher that is heard
        place.process.send_signal(signal.SIGURG)
        time.sleep(0.02)
    assert place.process.poll() == 1
    assert place.called() == []
