"""Snapshots of a site, from files as jobs write them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from csrun.base.errors import UsageError
from csrun.base.mode import ExecutionMode
from csrun.context import JobFile, Role, TaskEntry, TaskReport, TaskReportKind, Telemetry
from csrun.jobs.record import Outcome, RecordState
from csrun.jobs.registered_job import RegisteredJob, registered
from csrun.jobs.request import JobOptions
from csrun.launch import backend_of
from csrun.launch.first_cause import TaskEnd, summarize
from csrun.launch.process import usage_log
from csrun.launch.process.task_usage import TaskUsage
from csrun.records import log_lines
from csrun.records.events import EventWriter
from csrun.site import load
from csrun.watch import Collector

SITE = load("local")
ENTRIES = (
    TaskEntry(0, Role.CHIEF, "node1", 0, 0, (0,)),
    TaskEntry(1, Role.STREAMER, "node2", 1, 0, (0,)),
    TaskEntry(2, Role.STREAMER, "node2", 1, 1, (0,)),
)


@pytest.fixture
def job(state: str, tmp_path: Path) -> Iterator[RegisteredJob]:
    """Job that has started a training in `runs` of its working directory."""
    with registered(SITE, ("python", "run.py"), JobOptions("digits"), 2, 3) as started:
        started.start(("node1", "node2"))
        file = JobFile(
            started.job_id, ExecutionMode.PIPELINED, ("python", "run.py"), str(tmp_path), "local",
            2, 1, ENTRIES,
        )  # fmt: skip
        started.folder.prepare(file)
        log = f"INFO:csrun:{log_lines.saving_to(Path('runs'))}\n" + "line\n" * 10_000
        started.folder.log("rank-00000").write_text(log + "INFO:csrun:last line\n")
        yield started
        if started.record.is_active:
            started.end(Outcome(RecordState.COMPLETED, 0))


@pytest.fixture
def collector(state: str) -> Collector:
    return Collector(SITE, backend_of(SITE))


def publish(job: RegisteredJob, straggler: str = "") -> None:
    said = ("training", 30, 100, 2.0, 0, "loss 1", 2e9, 1.5, 0.25, straggler)
    Telemetry(("cs2-01",), *said).write(job.folder.path)


def test_an_idle_site(collector: Collector) -> None:
    found = collector.snapshot()
    assert ([system.name for system in found.systems], found.jobs) == (["cs2-01", "cs2-02"], ())
    assert found.job is None
    with pytest.raises(UsageError, match="no such job"):
        collector.snapshot(7)


def test_a_job_by_its_files(job: RegisteredJob, collector: Collector, tmp_path: Path) -> None:
    publish(job, straggler="streamer 2")
    writer = EventWriter(tmp_path / "runs")
    writer.scalars({"loss": 2.5, "local_samples_per_sec": 9.0, "avg_samples_per_sec": 8.0}, 10)
    detail = collector.snapshot().job
    assert detail is not None
    assert (detail.can_read, detail.model_dir) == (True, str(tmp_path / "runs"))
    run = detail.run
    assert run is not None
    assert (run.step, run.last_step, run.loss, run.input_share) == (30, 100, 1.5, 0.25)
    assert (run.rate, run.global_rate) == (9.0, 8.0)
    assert [(task.name, task.state, task.is_straggler) for task in detail.tasks] == [
        ("chief", "unknown", False),
        ("streamer 1", "unknown", False),
        ("streamer 2", "unknown", True),
    ]
    assert len(detail.log) == 200
    assert detail.log[-1] == "INFO:csrun:last line"
    writer.scalars({"loss": 0.5}, 20)
    writer.close()
    found = collector.snapshot().job
    assert found is not None
    assert found.run is not None
    assert [(point.step, point.loss) for point in found.run.losses] == [
        (10, 2.5), (20, 0.5), (30, 1.5)
    ]  # fmt: skip


def test_the_tasks_of_a_job_that_failed(job: RegisteredJob, collector: Collector) -> None:
    job.folder.mark_ended(1)
    TaskReport(2, TaskReportKind.EXIT, "sys.exit was called", "", 7, 1.0, 10).write(job.folder.path)
    detail = collector.snapshot(job.job_id).job
    assert detail is not None
    assert [task.state for task in detail.tasks] == ["unknown", "ended", "failed"]
    job.end(Outcome(RecordState.FAILED, 7, "rank 2 failed"))
    found = collector.snapshot(job.job_id)
    assert found.job is not None
    assert [task.state for task in found.job.tasks] == ["ended", "ended", "failed"]
    assert found.jobs[0].why == "rank 2 failed"


def test_a_wafer_has_ended_when_it_is_in_no_sample_any_more(
    job: RegisteredJob, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before its first sample nothing is known of it."""
    job.folder.log("wafer-cs2-01").touch()
    chief, wafer = (
        TaskUsage(log, 1, "S", 0.0, 1.0, 1 << 20) for log in ("rank-00000", "wafer-cs2-01")
    )
    monkeypatch.setattr(usage_log, "FIRST_S", 0.0)
    monkeypatch.setattr(usage_log, "AGE_SHARE", 0.0)
    writer, states = usage_log.UsageWriter(job.folder, 0), []
    for tasks in ((chief,), (chief, wafer), (chief,)):
        measured = {usage.name: usage for usage in tasks}
        monkeypatch.setattr(usage_log, "measure", lambda logs, measured=measured: measured)
        writer.sample_if_due(measured)
        detail = collector.snapshot(job.job_id).job
        assert detail is not None
        states.append([task.state for task in detail.tasks[:2]])
    assert states == [["running", "unknown"], ["running", "running"], ["running", "ended"]]


def test_the_task_of_the_first_cause_has_failed(job: RegisteredJob, collector: Collector) -> None:
    job.folder.log("wafer-cs2-01").touch()
    for rank in (0, 1, 2):
        message = "lost the connection to the wafer of cs2-01"
        report = TaskReport(rank, TaskReportKind.PEER_LOST, message, "", 1, 1.0, 10)
        report.write(job.folder.path)
    wafer = TaskEnd("wafer-cs2-01", 0, Role.WAFER, "node1", -9, 1.0, wafer="cs2-01")
    job.end(Outcome(RecordState.FAILED, 137, summarize(wafer)))
    found = collector.snapshot(job.job_id).job
    assert found is not None
    assert [(task.name, task.state) for task in found.tasks] == [
        ("chief", "ended"), ("wafer cs2-01", "failed"),
        ("streamer 1", "ended"), ("streamer 2", "ended"),
    ]  # fmt: skip


def test_a_damaged_job_is_shown_without_its_run(job: RegisteredJob, collector: Collector) -> None:
    publish(job)
    (job.folder.path / "job.json").write_text("{}")
    detail = collector.snapshot().job
    assert detail is not None
    assert (detail.can_read, detail.tasks) == (False, ())


def test_the_job_that_is_looked_for(job: RegisteredJob, collector: Collector) -> None:
    with registered(SITE, ("true",), JobOptions(), 1, 1) as waiting:
        waiting.waits_for("nodes")
        found = collector.snapshot()
        assert found.job is not None
        assert found.job.job_id == job.job_id
        job.end(Outcome(RecordState.COMPLETED, 0))
        found = collector.snapshot()
        assert found.job is not None
        assert found.job.job_id == waiting.job_id
