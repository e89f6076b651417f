"""Records of a cluster's jobs, without a cluster."""

from pathlib import Path

import pytest

from csrun.jobs.record import RecordState, moved
from csrun.jobs.request import JobRequest
from csrun.launch.slurm import records
from csrun.site import load

SITE = load("local")


def test_a_job_that_left_the_queue_before_its_start_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CSRUN_STATE_DIR", str(tmp_path / "state"))
    request = JobRequest(("python-ws", "run.py", "--validate_only"), 3)
    records.record_pending(SITE, request, 7, 3, 5)
    found = records.of_job(SITE, 7)
    assert found is not None
    assert (found.state, found.type, found.tasks) == (RecordState.PENDING, "compile", 5)
    over = records.settled(found)
    assert (over.state, over.cause) == (RecordState.CANCELLED, records.NEVER_STARTED)
    assert (over.ended, over.elapsed_s) == (found.submitted, 0)


def test_a_job_that_has_started_does_not_become_pending_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher may read Slurm's queue message after the tasks have started."""
    monkeypatch.setenv("CSRUN_STATE_DIR", str(tmp_path / "state"))
    request = JobRequest(("python-ws", "run.py"), 3)
    records.record_pending(SITE, request, 7, 3, 5)
    found = records.of_job(SITE, 7)
    assert found is not None
    running = moved(found, RecordState.RUNNING, started=found.submitted)
    records.Recorded(tmp_path / "state/local/jobs/records/7.json", running).write()
    records.record_pending(SITE, request, 7, 3, 5)
    found = records.of_job(SITE, 7)
    assert found is not None
    assert found.state is RecordState.RUNNING
