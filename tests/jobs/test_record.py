"""A job's record: valid transitions, and the state shown for a job that nobody updates."""

import json
import os
from datetime import UTC, datetime, timedelta
from itertools import product
from pathlib import Path

import msgspec
import pytest

from csrun.base.errors import CsrunError, UsageError
from csrun.context import jobs_dir_of
from csrun.jobs import register
from csrun.jobs.folder import create
from csrun.jobs.record import (
    JobRecord,
    Launcher,
    Outcome,
    RecordState,
    RecordTransitionError,
    ended,
    moved,
)
from csrun.site import load

THEN = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
RECORD = JobRecord(
    job_id=7,
    name="run",
    user="someone",
    uid=os.getuid(),
    command=("python-ws", "run.py"),
    working_dir="/",
    nodes=3,
    tasks=4,
    launcher=Launcher("host", 1, 1),
    submitted=THEN,
)
PASSAGES = {
    "PENDING": {"RUNNING", "FAILED", "CANCELLED", "LOST"},
    "RUNNING": {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "LOST"},
}
SITE = load("local")


@pytest.mark.parametrize(("before", "after"), [*product(RecordState, RecordState)])
def test_the_passages_of_a_job(before: RecordState, after: RecordState) -> None:
    record = msgspec.structs.replace(RECORD, state=before, reason="nodes")
    if after in PASSAGES.get(before, set()):
        assert moved(record, after) == msgspec.structs.replace(record, state=after, reason="")
    else:
        with pytest.raises(RecordTransitionError, match=f"job 7: {before} -> {after}"):
            moved(record, after)


def test_the_end_of_a_job_is_kept_with_its_cause() -> None:
    record = moved(RECORD, RecordState.RUNNING, started=THEN)
    over = ended(record, Outcome(RecordState.FAILED, 3, "rank 0 failed"), ())
    assert (over.exit_code, over.cause, over.is_active) == (3, "rank 0 failed", False)
    assert msgspec.structs.replace(over, ended=THEN + timedelta(seconds=90)).elapsed_s == 90
    assert RECORD.elapsed_s == 0


@pytest.mark.usefixtures("state")
@pytest.mark.parametrize("before", [RecordState.PENDING, RecordState.RUNNING])
def test_a_dead_jobs_record_is_lost(before: RecordState) -> None:
    register.write(SITE, msgspec.structs.replace(RECORD, state=before))
    _, live = create(jobs_dir_of(SITE.name), 7, "job 7")
    with live:
        assert register.read(SITE, 7).state is before
    lost = register.read(SITE, 7)
    assert lost.state == "LOST"
    assert lost.ended is not None
    assert register.read_all(SITE) == [lost]  # it was settled: the time is the same


@pytest.mark.usefixtures("state")
def test_a_job_without_its_folder_is_lost() -> None:
    register.write(SITE, RECORD)
    assert register.read(SITE, 7).state == "LOST"


@pytest.mark.usefixtures("state")
def test_a_job_that_ends_between_two_looks_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    running = moved(RECORD, RecordState.RUNNING, started=THEN)
    over = ended(running, Outcome(RecordState.COMPLETED, 0), ())
    register.write(SITE, running)

    def end_meanwhile(path: Path) -> bool:
        register.write(SITE, over)
        return False

    monkeypatch.setattr(register, "is_held", end_meanwhile)
    assert register.read(SITE, 7) == over


@pytest.mark.parametrize("text", [b'{"job_id": 6', b"", b'{"name": "\xff"}'])
def test_a_damaged_record_is_named_and_hides_no_other(
    text: bytes, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    over = ended(moved(RECORD, RecordState.RUNNING), Outcome(RecordState.COMPLETED, 0), ())
    register.write(SITE, over)
    damaged = Path(state) / SITE.name / "records" / "6.json"
    damaged.write_bytes(text)
    assert register.read_all(SITE) == [over]
    assert f"warning: {damaged}: the record is damaged" in capsys.readouterr().err
    with pytest.raises(CsrunError, match="remove the file"):
        register.read(SITE, 6)


@pytest.mark.usefixtures("state")
def test_an_unknown_job_is_a_mistake() -> None:
    with pytest.raises(UsageError, match="job 8: no such job on site local"):
        register.read(SITE, 8)


def test_the_newest_records_are_kept(state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(register, "KEPT_RECORDS", 3)
    for job_id in range(1, 7):
        register.write(SITE, msgspec.structs.replace(RECORD, job_id=job_id))
    _, live = create(jobs_dir_of(SITE.name), 2, "job 2")
    with live:
        register.prune(SITE)
    assert register.record_ids(SITE) == [2, 4, 5, 6]


def test_a_record_is_json_that_anyone_reads(state: str) -> None:
    register.write(SITE, RECORD)
    found = json.loads((Path(state) / SITE.name / "records" / "7.json").read_text())
    assert found["command"] == ["python-ws", "run.py"]
    assert found["submitted"] == "2026-01-02T03:04:05Z"
