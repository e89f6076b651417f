"""Metrics of a site, read by Prometheus's own parser."""

from datetime import UTC, datetime

import pytest
from prometheus_client.parser import text_string_to_metric_families

from csrun.base.mode import ExecutionMode
from csrun.context import Telemetry
from csrun.jobs.overview import SystemStatus
from csrun.jobs.record import JobRecord, Launcher, RecordState
from csrun.launch.prometheus import Metric, Sample, cause_of, exposition, site_metrics
from csrun.system import Power

TIME = datetime(2026, 11, 20, tzinfo=UTC)
SYSTEMS = [
    SystemStatus("cs2-01", "", ExecutionMode.PIPELINED, Power.ACTIVE, 4, (5, 6)),
    SystemStatus("cs2-02", "", ExecutionMode.PIPELINED, Power.STANDBY, None, (), "in STANDBY"),
]
RUN = Telemetry(("cs2-01",), "training", 120, 1000, 2.5, 1 << 20, "", 1795000000.25, 0.125, 0.5)


def record(state: RecordState, exit_code: int | None = None, cause: str = "") -> JobRecord:
    return JobRecord(1, "run.py", "ada", 0, (), "", 1, 1, Launcher("here", 1, 1), TIME, state,
                     exit_code=exit_code, cause=cause)  # fmt: skip


FAILED = RecordState.FAILED
JOBS = [
    record(RecordState.RUNNING), record(RecordState.PENDING), record(RecordState.PENDING),
    record(RecordState.COMPLETED, 0), record(FAILED, 2), record(FAILED, 137),
    record(FAILED, 1, "rank 2 (streamer) on node3: node3 lost: rank 2 ended without"),
    record(FAILED, 1, "rank 2 (streamer) on node3: ValueError"),
]  # fmt: skip


def parsed(text: str) -> dict[tuple[str, ...], float]:
    """Samples by name and label values, as parsed by Prometheus."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_prometheus_reads() -> None:
    runs = {"cs2-01": RUN, "cs2-02": None}
    found = parsed(exposition(site_metrics(SYSTEMS, JOBS, JOBS, runs)))
    assert found == {
        ("csrun_system_info", "cs2-01", "PIPELINED", "ACTIVE"): 1,
        ("csrun_system_info", "cs2-02", "PIPELINED", "STANDBY"): 1,
        ("csrun_system_available", "cs2-01"): 1,
        ("csrun_system_available", "cs2-02"): 0,
        ("csrun_system_leased", "cs2-01"): 1,
        ("csrun_system_leased", "cs2-02"): 0,
        ("csrun_system_queue_length", "cs2-01"): 2,
        ("csrun_system_queue_length", "cs2-02"): 0,
        ("csrun_run_step", "cs2-01"): 120,
        ("csrun_run_last_step", "cs2-01"): 1000,
        ("csrun_run_steps_per_second", "cs2-01"): 2.5,
        ("csrun_run_loss", "cs2-01"): 0.125,
        ("csrun_run_input_wait_ratio", "cs2-01"): 0.5,
        ("csrun_run_last_progress_timestamp_seconds", "cs2-01"): 1795000000.25,
        ("csrun_jobs", "PENDING"): 2,
        ("csrun_jobs", "RUNNING"): 1,
        ("csrun_jobs_ended", "COMPLETED"): 1,
        ("csrun_jobs_ended", "FAILED"): 4,
        ("csrun_jobs_failed", "user_error"): 1,
        ("csrun_jobs_failed", "node_lost"): 1,
        ("csrun_jobs_failed", "killed"): 1,
        ("csrun_jobs_failed", "error"): 1,
    }


@pytest.mark.parametrize("value", [0.1, 1e300, -3, float("inf"), float("-inf"), 1 / 3])
def test_numbers_keep_all_digits(value: float) -> None:
    text = exposition([Metric("x", "X.", (Sample(value, (("a", 'b"\\\n'),)),))])
    assert parsed(text) == {("csrun_x", 'b"\\\n'): value}


def test_the_words_of_a_lost_node_are_those_of_its_report() -> None:
    from csrun.launch.slurm import srun_process

    text = srun_process.describe_loss("node3", 2)
    assert cause_of(record(FAILED, 1, f"rank 2 (streamer) on node3: {text}")) == "node_lost"
