"""A full disk under the state folder: named as the cause, whichever process fails first."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.jobs import Sandbox

from csrun.jobs.folder import TASK_BYTES, missing_disk_space

ONE_TASK = ("--total-nodes", "1", "--tasks-per-node", "1")
FILL = """
import os, pathlib
with open(pathlib.Path(os.environ["CSRUN_JOB_DIR"]) / "large", "wb", buffering=0) as file:
    while True:
        file.write(bytes(4096))
"""
FULL = r"error: .*jobs/1: disk full: the files of 1 task need about [\d,]+ bytes, 0 are free"


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Sandbox]:
    """Place whose state is on a disk of 1 MB."""
    folder = tmp_path / "state"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("a small file system needs the right to mount one")
    yield Sandbox(tmp_path)
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_becomes_full_is_the_cause(place: Sandbox) -> None:
    place.script(FILL)
    done = place.run(*ONE_TASK, "python", "run.py")
    assert done.returncode == 1
    assert re.search(FULL, done.stderr), done.stderr
    assert "set CSRUN_STATE_DIR to a folder on a larger disk" in done.stderr


def test_a_job_that_has_no_room_does_not_begin(place: Sandbox) -> None:
    used = place.path / "state" / "used"
    used.write_bytes(bytes((1 << 20) - 20 * TASK_BYTES))
    done = place.run("--total-nodes", "16", "--tasks-per-node", "4", "touch", "begun")
    assert done.returncode == 2
    assert "the files of 64 tasks need about 1,048,576 bytes, " in done.stderr
    assert len([line for line in done.stderr.splitlines() if "error" in line]) == 1
    assert not (place.path / "begun").exists()


def test_room_enough_is_nothing_to_say(tmp_path: Path) -> None:
    assert missing_disk_space(tmp_path / "not" / "there", 1) is None
