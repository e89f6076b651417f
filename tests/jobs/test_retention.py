"""Retention of ended jobs' folders: a table of rules, and real folders with their locks."""

import os
from pathlib import Path

import pytest

from csrun.jobs.folder import create, newest_first
from csrun.jobs.retention import Leftover, expired, expired_folders, prune
from csrun.site import Retention

DAY_S = 86_400
NOW_S = 1000.0 * DAY_S
#: The newest first: 0, 1, 2, 3 days old, 4 MB each.
FOLDERS = [Leftover(Path(str(age)), NOW_S - age * DAY_S, 4_000_000) for age in range(4)]


@pytest.mark.parametrize(("rule", "gone"), [
    (Retention(), ""),
    (Retention(keep_count=2), "23"),
    (Retention(keep_days=1.5), "23"),
    (Retention(keep_mb=12), "3"),
    (Retention(keep_mb=1), "123"),  # the newest stays, whatever its size
    (Retention(keep_count=3, keep_days=2.5, keep_mb=8), "23"),
])  # fmt: skip
def test_rules(rule: Retention, gone: str) -> None:
    assert "".join(str(each.path) for each in expired(FOLDERS, rule, NOW_S)) == gone


def test_the_newest_stay_and_so_do_the_living(tmp_path: Path) -> None:
    made = [create(tmp_path, number, f"job {number}") for number in range(1, 8)]
    for folder, live in made:
        (folder.path / "secret").write_bytes(bytes(1000))
        if folder.path.name != "2":
            live.release()
    paths, rule, dead = newest_first(tmp_path), Retention(keep_count=4), []
    assert [each.path.name for each in expired_folders(paths, rule)] == ["3", "1"]
    prune(paths, rule, lambda path: dead.append(path.name))
    made[1][1].release()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "4", "5", "6", "7"]
    assert dead == ["7", "6", "5", "4", "3", "1"]
    assert [path.parent.name for path in tmp_path.glob("*/secret")] == ["2"]


def test_sizes_are_those_of_all_files(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        folder, live = create(tmp_path, number, "job")
        live.release()
        (folder.path / "logs").mkdir()
        (folder.path / "logs" / "a.log").write_bytes(bytes(600_000))
        os.utime(folder.path, (number, number))
    assert [e.path.name for e in expired_folders(newest_first(tmp_path), Retention(keep_mb=1))] == [
        "2",
        "1",
    ]
