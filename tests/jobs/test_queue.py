"""Job ids: unique even with a damaged counter; and folders with wrong permissions."""

import subprocess
import sys
from pathlib import Path

import pytest
from support.jobs import Sandbox

from csrun.base import stored
from csrun.jobs.registered_job import JobCounter, registered
from csrun.jobs.request import JobOptions
from csrun.site import load


@pytest.fixture
def place(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def job_id() -> int:
    with registered(load("local"), ("true",), JobOptions(), 1, 1) as job:
        return job.job_id


@pytest.mark.parametrize("damage", [None, b"", b"\0\0", b"1" * 5000], ids=["gone", "", "0", "long"])
def test_a_lost_counter_goes_on_after_the_newest_folder(damage: bytes | None, state: str) -> None:
    assert [job_id(), job_id()] == [1, 2]
    counter = Path(state) / "local" / "last_job"
    counter.unlink()
    if damage is not None:
        counter.write_bytes(damage)
    assert job_id() == 3


def test_a_counter_is_believed_when_folders_are_gone(state: str) -> None:
    folder = Path(state) / "local"
    folder.mkdir(parents=True)
    stored.write(folder / "last_job", JobCounter(41))
    assert job_id() == 42


@pytest.mark.parametrize("command", ["csrun_wse", "csrun_cpu"])
def test_a_queue_that_cannot_be_written_is_one_line(command: str, place: Sandbox) -> None:
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
