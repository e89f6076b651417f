"""Job ids: each is drawn once, whatever became of the counter."""

import re
from pathlib import Path

import pytest
from support.jobs import Workplace

ONE_TASK = ("--total-nodes", "1", "--tasks-per-node", "1")


def job_id(place: Workplace) -> int:
    done = place.run(*ONE_TASK, "true")
    assert done.returncode == 0, done.stderr
    found = re.search(r"job (\d+) has been allocated", done.stderr)
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("damage", [None, b"", b"\0\0", b"1"], ids=repr)
def test_a_lost_counter_goes_on_after_the_newest_folder(
    damage: bytes | None, tmp_path: Path
) -> None:
    place = Workplace(tmp_path)
    assert [job_id(place), job_id(place)] == [1, 2]
    counter = place.jobs.parent / "last_job"
    counter.unlink()
    if damage is not None:
        counter.write_bytes(damage)
    assert job_id(place) == 3


def test_a_counter_is_believed_when_folders_are_gone(tmp_path: Path) -> None:
    place = Workplace(tmp_path)
    place.jobs.parent.mkdir(parents=True)
    (place.jobs.parent / "last_job").write_text("41")
    assert job_id(place) == 42
