"""Leases reported by a chief, and read while it writes."""

from datetime import UTC, datetime
from pathlib import Path

import pytest

from csrun.context.job import USES_FILE, LeaseLog, read_leases


def test_a_lease_from_its_asking_to_its_end(tmp_path: Path) -> None:
    assert read_leases(tmp_path) == ()
    begun = datetime.now(UTC)
    log = LeaseLog(tmp_path)
    log.record_request("cs2-01")
    (asked,) = read_leases(tmp_path)
    assert (asked.system, asked.taken, asked.released) == ("cs2-01", None, None)
    with log.record_lease():
        (taken,) = read_leases(tmp_path)
        assert taken.taken is not None
        assert taken.released is None
    (over,) = read_leases(tmp_path)
    assert over.taken is not None
    assert over.released is not None
    assert begun <= over.requested <= over.taken <= over.released <= datetime.now(UTC)


def test_the_next_lease_of_a_job_comes_after_the_first(tmp_path: Path) -> None:
    for system in ("cs2-01", "cs2-02"):
        log = LeaseLog(tmp_path)
        log.record_request(system)
        with log.record_lease():
            pass
    assert [use.system for use in read_leases(tmp_path)] == ["cs2-01", "cs2-02"]


def test_a_folder_that_takes_nothing_ends_no_run(tmp_path: Path) -> None:
    log = LeaseLog(tmp_path / "gone")
    log.record_request("cs2-01")
    with log.record_lease():
        pass
    assert read_leases(tmp_path / "gone") == ()


@pytest.mark.parametrize("text", [b"", b'[{"system": "cs2', b'[{"system": "\xff"}]', b"{}"])
def test_a_damaged_file_tells_nothing(text: bytes, tmp_path: Path) -> None:
    (tmp_path / USES_FILE).write_bytes(text)
    assert read_leases(tmp_path) == ()
