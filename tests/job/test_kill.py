"""SIGKILL of any process of a training at any moment: nothing is left, the next run goes on."""

import os
import random
import signal
import subprocess
import time

import psutil
import pytest
from support.fc_mnist import MANY_STEPS, FcMnist
from support.jobs import END_S, until

from csrun.records import checkpoints

EVERY = 50  # steps between two checkpoints: so that many a kill comes while one is written
LONGEST_S = 1.5  # from a process's birth to its kill: launch, compile and training fall into it
KILLED = -signal.SIGKILL
CAUSES = {
    "launcher": "",
    "forkserver": "csrun_wse: error: the fork server was killed by signal 9 (SIGKILL)",
    "rank-00000": "csrun_wse: error: rank 0 (chief) on node1 was killed by signal 9 (SIGKILL)",
    "rank-00001": "csrun_wse: error: rank 1 (memoryx) on node2 was killed by signal 9 (SIGKILL)",
    "rank-00003": "csrun_wse: error: rank 3 (streamer) on node3 was killed by signal 9 (SIGKILL)",
    "wafer-cs2-02": "csrun_wse: error: wafer of cs2-02 (for rank 0 on node1) was killed by signal",
}
FEW, MANY = range(2), range(2, 20)


def moments(numbers: range) -> list[tuple[str, float]]:
    """For each process kind, seeded times after its birth."""
    return [
        (name, round(random.Random(f"{name} {number}").uniform(0, LONGEST_S), 3))
        for name in CAUSES
        for number in numbers
    ]


@pytest.mark.parametrize(("name", "after_s"), moments(FEW))
def test_kill(place: FcMnist, name: str, after_s: float) -> None:
    assert_survived(place, name, after_s)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "after_s"), moments(MANY))
def test_kill_at_many_moments(place: FcMnist, name: str, after_s: float) -> None:
    assert_survived(place, name, after_s)


def assert_survived(place: FcMnist, name: str, after_s: float) -> None:
    place.configure(
        runconfig__max_steps=MANY_STEPS,
        runconfig__save_checkpoints_steps=EVERY,
        runconfig__keep_checkpoint_max=2,
    )
    with place.start_wse() as launcher:
        pid = born(place, launcher, name)
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
        assert not left(place, launcher), f"{name} killed {after_s} s after its birth"
        _, err = launcher.communicate(timeout=END_S)
    assert launcher.returncode == (KILLED if name == "launcher" else 128 + signal.SIGKILL), err
    named = [line for line in err.splitlines() if "error: " in line]
    assert [line[: len(CAUSES[name])] for line in named] == [CAUSES[name]] * (name != "launcher")
    assert "Traceback" not in err
    assert_resumes(place)


def born(place: FcMnist, launcher: "subprocess.Popen[str]", name: str) -> int:
    """The process of that name, as soon as there is one."""
    found: dict[str, int] = {}

    def is_there() -> bool:
        found.update(place.processes(launcher.pid))
        return name in found

    until(is_there)
    return found[name]


def left(place: FcMnist, launcher: "subprocess.Popen[str]") -> list[psutil.Process]:
    """What is there of the job when its time is over; all of it works in the test's folder."""

    def living() -> list[psutil.Process]:
        launcher.poll()
        return [p for p in psutil.process_iter() if works_in(p, str(place.path))]

    deadline_s = time.monotonic() + END_S
    while (found := living()) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return found


def works_in(process: psutil.Process, folder: str) -> bool:
    try:
        return process.cwd() == folder
    except psutil.Error:
        return False  # gone, or a zombie


def assert_resumes(place: FcMnist) -> None:
    """The next run begins where the index says, and reaches its end."""
    found = checkpoints.latest(place.model_dir) if place.model_dir.exists() else None
    goal = (found.step if found else 0) + EVERY
    done = place.wse("--max_steps", str(goal))
    assert done.returncode == 0, done.stderr
    resumed = f"Restoring parameters from model_dir/model-ckpt-{goal - EVERY}.safetensors"
    assert (resumed in done.stdout) == (found is not None)
    newest = checkpoints.latest(place.model_dir)
    assert newest is not None
    assert newest.step == goal
    assert sorted(file.name for file in place.model_dir.glob(".*")) == []
