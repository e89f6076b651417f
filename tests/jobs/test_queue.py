"""Job ids, each drawn once, whatever became of the counter; and folders that are not as needed."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import Workplace

from csrun.base import stored
from csrun.jobs.registered_job import JobCounter

ONE_TASK = ("--total-nodes", "1", "--tasks-per-node", "1")


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)


def job_id(place: Workplace) -> int:
    done = place.run(*ONE_TASK, "true")
    assert done.returncode == 0, done.stderr
    found = re.search(r"job (\d+) has been allocated", done.stderr)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("damage", [None, b"", b"\0\0", b"1" * 5000], ids=repr)
def test_a_lost_counter_goes_on_after_the_newest_folder(
    damage: bytes | None, place: Workplace
) -> None:
    assert [job_id(place), job_id(place)] == [1, 2]
    counter = place.jobs.parent / "last_job"
    counter.unlink()
    if damage is not None:
        counter.write_bytes(damage)
    assert job_id(place) == 3


def test_a_counter_is_believed_when_folders_are_gone(place: Workplace) -> None:
    place.jobs.parent.mkdir(parents=True)
    stored.write(place.jobs.parent / "last_job", JobCounter(41))
    assert job_id(place) == 42


@pytest.mark.parametrize("command", ["csrun_wse", "csrun_cpu"])
def test_a_queue_that_cannot_be_written_is_one_line(command: str, place: Workplace) -> None:
    place.jobs.parent.mkdir(parents=True)
    (place.jobs.parent / "nodes").touch()  # a file, where the queue's folder should be
    done = place.run("true", command=command)
    assert done.returncode == 2
    message = f"{place.jobs.parent}/nodes/line/mutex: cannot be locked: Not a directory; "
    assert f"{command}: error: {message}" in done.stderr
    assert "Traceback" not in done.stderr
    assert place.record(1)["state"] == "FAILED"
    assert str(place.record(1)["cause"]).startswith(message)


@pytest.mark.parametrize("command", ["csrun_wse", "csrun_cpu"])
def test_a_folder_that_was_removed_is_one_line(command: str, tmp_path: Path) -> None:
    script = f"rmdir ../gone; exec {sys.executable} -m csrun.cli.{command} true"
    gone = tmp_path / "gone"
    gone.mkdir()
    done = subprocess.run(["sh", "-c", script], cwd=gone, capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr == (
        f"{command}: error: the current folder no longer exists: cd to another\n"
    )
