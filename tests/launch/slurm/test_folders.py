"""Folder of a Slurm job: owner, retention, and messages without it."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from csrun.base.errors import CsrunError, UsageError
from csrun.context import jobs_dir_of
from csrun.launch.slurm import execution, folders
from csrun.site import Retention, load

KEPT_JOBS = 5
SITE = msgspec.structs.replace(load("local"), gres="cs:{system}:1")


def test_folders_are_the_owners_and_the_oldest_go(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    for number in range(1, KEPT_JOBS + 3):
        folder, live = folders.create(jobs)
        assert folder.path.stat().st_mode & 0o777 == 0o700
        folder.create_subfolders()
        assert folders.name_by_id(folder, number).path == jobs / str(number)
        os.utime(folder.path, (number, number))
        if number != 1:
            live.release()
        else:
            held = live
    folders.prune(jobs, Retention(keep_count=KEPT_JOBS))
    left = sorted(int(path.name) for path in jobs.glob("[0-9]*"))
    assert left == [1, *range(3, KEPT_JOBS + 3)]  # the first one lives
    assert len(list(jobs.glob(".job-*/secret"))) == 1
    held.release()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="set jobs_dir in the site file"):
        folders.create(tmp_path / "file" / "jobs")


def test_a_disk_that_is_full_is_told_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    folder, live = folders.create(tmp_path)
    said = "folder cannot be written: No space left on device"
    with live, pytest.raises(CsrunError, match=said), execution._writing(folder):
        full()
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UsageError, match="cannot be created: No space left on device"):
        folders.create(tmp_path)


def test_the_folder_of_the_site_may_name_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CLUSTER_USER", "ada")
    site = msgspec.structs.replace(SITE, jobs_dir=f"{tmp_path}/$CLUSTER_USER/jobs")
    assert jobs_dir_of(site.name, site.jobs_dir) == tmp_path / "ada" / "jobs"
    monkeypatch.delenv("CLUSTER_USER")
    with pytest.raises(UsageError, match=r"site local: jobs_dir: .*\$CLUSTER_USER is not set"):
        jobs_dir_of(site.name, site.jobs_dir)


def test_a_node_agent_without_its_folder_says_where_it_looked(tmp_path: Path) -> None:
    place = {"SLURM_PROCID": "3", "SLURMD_NODENAME": "node2", "SLURM_JOB_ID": "9",
             "SLURM_LAUNCH_NODE_IPADDR": "127.0.0.1"}  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-P", "-m", "csrun.launch.slurm.node_agent", str(tmp_path / "none"), ""],
        env={**os.environ, **place}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 2
    assert f"csrun: node2: job folder {tmp_path}/none not found" in done.stderr
    assert "jobs_dir" in done.stderr
    assert "Traceback" not in done.stderr
