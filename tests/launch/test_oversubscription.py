"""Two dozen concurrent jobs on two systems: all run, none shares a system, no leftovers."""

import fcntl
import json
import random
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.fc_mnist import FcMnist
from support.jobs import until

JOBS = 24
KILLED = JOBS // 3
SEED = 11
LONGEST_PAUSE_S = 0.5  # between two kills: jobs are met while they wait, compile and train
STALL_S = 400
PIPELINED = ("--total-nodes", "1", "--tasks-per-node", "1")
STREAMING = ("--total-nodes", "3", "--tasks-per-node", "1")
SYSTEMS = {"cs2-01", "cs2-02"}

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

Launcher = subprocess.Popen[str]
Record = dict[str, Any]


@contextmanager
def many_launchers(folder: Path) -> Iterator[list[Launcher]]:
    """Jobs started at once, each in its own folder, on one site."""
    (folder / "state").mkdir()
    with ExitStack() as started:
        launchers = []
        for number in range(JOBS):
            place = FcMnist(folder / str(number))
            place.path.mkdir()
            (place.path / "state").symlink_to(folder / "state")
            place.configure(model__hidden_sizes=[5])
            layout, python = (PIPELINED, "python") if number % 2 else (STREAMING, "python-ws")
            launcher = place.start_wse("--max_steps", "2", layout=layout, interpreter=python)
            launchers.append(started.enter_context(launcher))
        yield launchers


def records(folder: Path) -> list[Record]:
    return [json.loads(path.read_text()) for path in folder.glob("state/local/records/*.json")]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def uses(found: list[Record], system: str) -> list[tuple[datetime, datetime | None, Record]]:
    """Times at which jobs took and released a system, in order."""
    every = [(use, record) for record in found for use in record["systems"]]
    times = [
        (at(use["taken"]), at(use["given_back"]) if use["given_back"] else None, record)
        for use, record in every
        if use["system"] == system and use["taken"]
    ]
    return sorted(times, key=lambda time: time[0])


def assert_nothing_is_left(folder: Path) -> None:
    state = str(folder / "state")
    places = {f"{folder / str(number)}" for number in range(JOBS)}
    until(lambda: not [p for p in psutil.process_iter() if works_in(p, places)])
    for path in Path(state).rglob("*.lock"):
        with path.open() as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def works_in(process: psutil.Process, places: set[str]) -> bool:
    try:
        return process.cwd() in places
    except psutil.Error:
        return False


def test_all_run_and_none_shares_a_system(tmp_path: Path) -> None:
    with many_launchers(tmp_path) as launchers:
        said = [launcher.communicate(timeout=STALL_S)[1] for launcher in launchers]
        codes = [launcher.returncode for launcher in launchers]
    assert codes == [0] * JOBS, said
    found = records(tmp_path)
    assert sorted(record["job_id"] for record in found) == list(range(1, JOBS + 1))
    assert {record["state"] for record in found} == {"COMPLETED"}
    held = {system: uses(found, system) for system in SYSTEMS}
    assert [len(held[system]) for system in SYSTEMS] == [JOBS // 2] * 2
    for times in held.values():
        for (_, given_back, _), (taken, _, _) in pairwise(times):
            assert given_back is not None
            assert given_back <= taken
    assert_nothing_is_left(tmp_path)


def test_a_third_is_killed_and_all_others_run(tmp_path: Path) -> None:
    chance = random.Random(SEED)
    killed: dict[int, datetime] = {}
    with many_launchers(tmp_path) as launchers:
        until(lambda: len(records(tmp_path)) >= JOBS // 2)  # the others have no job yet
        while len(killed) < KILLED:
            time.sleep(LONGEST_PAUSE_S * chance.random())
            living = [launcher for launcher in launchers if launcher.poll() is None]
            assert living, "they ended before a third of them could be killed"
            victim = chance.choice(living)
            killed[victim.pid] = datetime.now(UTC)
            victim.kill()
            victim.wait()
        said = [launcher.communicate(timeout=STALL_S)[1] for launcher in launchers]
        codes = [la.returncode for la in launchers if la.pid not in killed]
    assert codes == [0] * (JOBS - KILLED), said
    assert_nothing_is_left(tmp_path)
    done = FcMnist(tmp_path / "0").csctl("get", "jobs", "--all", "-o", "json")
    found = {record["launcher"]["pid"]: record for record in json.loads(done.stdout)}
    survivors = [record for pid, record in found.items() if pid not in killed]
    assert [record["state"] for record in survivors] == ["COMPLETED"] * (JOBS - KILLED)
    victims = {record["state"] for pid, record in found.items() if pid in killed}
    assert victims <= {"LOST", "COMPLETED"}  # a kill may come after a launcher's last word
    assert "LOST" in victims
    for system in SYSTEMS:
        times = uses(list(found.values()), system)
        for (_, given_back, record), (taken, _, _) in pairwise(times):
            assert (given_back or killed[record["launcher"]["pid"]]) <= taken
