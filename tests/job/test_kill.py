"""SIGKILL of any process of a training at any moment: no leftovers, and the next run resumes."""

import os
import random
import re
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from support.fc_mnist import MANY_STEPS, TWO_STREAMERS, FcMnist
from support.jobs import STALL_S, until

from csrun.records import checkpoints

EVERY = 50  # steps between two checkpoints: so that many a kill comes while one is written
LONGEST_S = 1.5  # from a process's birth to its kill: launch, compile and training fall into it
KILLED = -signal.SIGKILL
KILL = "was killed by signal 9 (SIGKILL)"


@dataclass(frozen=True)
class Mode:
    """Interpreter and layout of an execution mode, and the message about each killed process."""

    interpreter: str
    layout: tuple[str, ...]
    causes: dict[str, str]

    def __str__(self) -> str:
        return self.interpreter


STREAMING = Mode(
    "python-ws",
    TWO_STREAMERS,
    {
        "launcher": "",
        "forkserver": f"csrun_wse: error: the fork server {KILL}",
        "rank-00000": f"csrun_wse: error: rank 0 (chief) on node1 {KILL}",
        "rank-00001": f"csrun_wse: error: rank 1 (memoryx) on node2 {KILL}",
        "rank-00003": f"csrun_wse: error: rank 3 (streamer) on node3 {KILL}",
        "wafer-cs2-02": f"csrun_wse: error: wafer of cs2-02 (for rank 0 on node1) {KILL}",
    },
)
PIPELINED = Mode(
    "python",
    ("--total-nodes", "3", "--tasks-per-node", "1", "--cpus-per-task", "1"),
    {
        "rank-00002": f"csrun_wse: error: rank 2 (streamer) on node3 {KILL}",
        "wafer-cs2-01": f"csrun_wse: error: wafer of cs2-01 (for rank 0 on node1) {KILL}",
    },
)


def moments(mode: Mode, *names: str) -> list[tuple[Mode, str, float]]:
    """For each process kind, a seeded time after its birth."""
    return [
        (mode, name, round(random.Random(f"{name} 0").uniform(0, LONGEST_S), 3)) for name in names
    ]


#: Of a pipeline those that differ; tests/chaos kills in both modes, at more moments. A killed
#: launcher, fork server and rank 0 are in tests/launch/test_local.py, too.
QUICK = ("rank-00001", "wafer-cs2-02")
MORE = ("launcher", "forkserver", "rank-00000", "rank-00003")
MOMENTS = moments(STREAMING, *QUICK) + [
    pytest.param(*moment, marks=pytest.mark.slow)
    for moment in [*moments(STREAMING, *MORE), *moments(PIPELINED, *PIPELINED.causes)]
]


@pytest.mark.parametrize(("mode", "name", "after_s"), MOMENTS, ids=str)
def test_kill(place: FcMnist, mode: Mode, name: str, after_s: float) -> None:
    place.configure(
        runconfig__max_steps=MANY_STEPS,
        runconfig__save_checkpoints_steps=EVERY,
        runconfig__keep_checkpoint_max=2,
        runconfig__weight_store=store_of(mode, after_s),
    )
    with place.start_wse(layout=mode.layout, interpreter=mode.interpreter) as launcher:
        pid = born(place, launcher, name)
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
        assert not left(place, launcher), f"{name} killed {after_s} s after its birth"
        _, err = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == (KILLED if name == "launcher" else 128 + signal.SIGKILL), err
    named = [line for line in err.splitlines() if "error: " in line]
    cause = mode.causes[name]
    assert [line[: len(cause)] for line in named] == [cause] * (name != "launcher")
    assert "Traceback" not in err
    assert_resumes(place, mode)


def store_of(mode: Mode, after_s: float) -> str | None:
    """Where the weights are: on disk in about half of the runs that stream them."""
    if mode is not STREAMING:
        return None
    return "disk" if round(1000 * after_s) % 2 else "memory"


def born(place: FcMnist, launcher: "subprocess.Popen[str]", name: str) -> int:
    """The process of that name, as soon as there is one."""
    found: dict[str, int] = {}

    def checkpoint_exists() -> bool:
        found.update(place.processes(launcher.pid))
        return name in found

    until(checkpoint_exists)
    return found[name]


def left(place: FcMnist, launcher: "subprocess.Popen[str]") -> list[psutil.Process]:
    """What is there of the job when its time is over; all of it works in the test's folder."""

    def living() -> list[psutil.Process]:
        launcher.poll()
        return [p for p in psutil.process_iter() if works_in(p, str(place.path))]

    deadline_s = time.monotonic() + STALL_S
    while (found := living()) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    return found


def works_in(process: psutil.Process, folder: str) -> bool:
    try:
        return process.cwd() == folder
    except psutil.Error:
        return False  # gone, or a zombie


def assert_resumes(place: FcMnist, mode: Mode) -> None:
    """The next run begins where the index says, and reaches its end."""
    found = checkpoints.latest(place.model_dir) if place.model_dir.exists() else None
    goal = (found.step if found else 0) + EVERY
    goal_given = ("--max_steps", str(goal))
    done = place.wse(*goal_given, layout=mode.layout, interpreter=mode.interpreter)
    assert done.returncode == 0, done.stderr
    resumed = f"Restoring parameters from model_dir/model-ckpt-{goal - EVERY}.safetensors"
    assert (resumed in done.stdout) == (found is not None)
    newest = checkpoints.latest(place.model_dir)
    assert newest is not None
    assert newest.step == goal
    assert sorted(file.name for file in place.model_dir.glob(".*")) == []


def test_a_disk_that_takes_pages_of_the_store_back_is_named(place: FcMnist) -> None:
    """As one does that is full where it has only promised room: its pages are there no more."""
    place.configure(
        model__hidden_sizes=[512] * 12,
        runconfig__max_steps=MANY_STEPS,
        runconfig__weight_store="disk",
        runconfig__weight_store_memory="20MB",  # of 30: all of it would lie in memory alone
    )
    with place.start_wse(layout=STREAMING.layout, interpreter=STREAMING.interpreter) as launcher:
        pid = born(place, launcher, "rank-00001")
        until(lambda: bool(list(place.path.glob("model_dir/model-ckpt-0.json"))))
        os.truncate(store_file(pid), 0)
        _, err = launcher.communicate(timeout=STALL_S)
    assert launcher.returncode == 128 + signal.SIGBUS, err
    named = r"was killed by signal 7 \(SIGBUS\): .* check the disk of the weight store"
    assert re.search(named, err), err


def store_file(pid: int) -> Path:
    """The file without a name that MemoryX has open."""
    name = re.compile(r"/(#[0-9]+|csrun-store-\w+) \(deleted\)$")
    descriptors = Path(f"/proc/{pid}/fd").iterdir()
    return next(d for d in descriptors if name.search(os.readlink(d)))
