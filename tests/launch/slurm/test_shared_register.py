"""Register of a shared site, used by two launchers of one account."""

import os
import stat
import threading
from pathlib import Path

import msgspec
import pytest

from csrun.base.files import account_name
from csrun.context import JobFile, Role, TaskEntry
from csrun.context.job import LIVE_LOCK
from csrun.jobs import folder
from csrun.jobs.registered_job import make_folders
from csrun.launch.slurm import shared_register
from csrun.site import Site, load
from csrun.system import FileLock, is_held

ENTRIES = (TaskEntry(0, Role.TASK, "node1", 0, 0, (0,)),)


def job(number: int) -> JobFile:
    return JobFile(number, None, ("true",), "/", "local", 1, 1, ENTRIES)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("CSRUN_STATE_DIR", str(tmp_path))
    site = msgspec.structs.replace(load("local"), shared=True)
    (tmp_path / site.name).mkdir(0o700)
    make_folders(site)
    return site


def show_other(site: Site) -> None:
    with shared_register.publish(site, "other", job(8)):
        pass


def test_a_place_that_is_being_made_is_not_taken_for_a_dead_jobs(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another launcher looks between the creation of an entry and its lock."""
    others: list[threading.Thread] = []
    lock = folder.lock

    def come_between(path: Path, holder: str) -> FileLock:
        if path.name == LIVE_LOCK and not others:
            others.append(threading.Thread(target=show_other, args=(site,)))
            others[0].start()
            others[0].join(timeout=0.5)  # it waits for us
        return lock(path, holder)

    monkeypatch.setattr(folder, "lock", come_between)
    with shared_register.publish(site, "first", job(7)) as shown:
        others[0].join(timeout=60)
        assert shown.board is not None
        place = Path(shown.board)
        assert stat.S_IMODE(place.stat().st_mode) == folder.SHOWN
        assert is_held(place / LIVE_LOCK)
    assert not place.exists()


def test_the_account_is_the_kernels_word_not_a_variables(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "mallory")
    with shared_register.publish(site, "first", job(7)):
        text = (folder.published_job_dir(site, 7) / "record.json").read_text()
    assert f'"user": "{account_name(os.getuid())}"' in text
    assert "mallory" not in text
