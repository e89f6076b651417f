"""State of a site as Prometheus metrics. Pure.

Source: Prometheus documentation, "Exposition formats", text format 0.0.4
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from csrun.base.errors import UsageError
from csrun.context import Telemetry
from csrun.jobs.overview import SystemStatus
from csrun.jobs.record import JobRecord, RecordState
from csrun.launch.backend import JobStatus

PREFIX = "csrun_"
_KILLED = 128  # higher exit codes are signals
_COUNTED = ("PENDING", "RUNNING")


@dataclass(frozen=True)
class Sample:
    """A value with its labels."""

    value: float
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Metric:
    """A gauge and its samples; the name has no prefix."""

    name: str
    help: str
    samples: tuple[Sample, ...]


class Cause(StrEnum):
    """Kind of a job's failure."""

    USER_ERROR = "user_error"
    NODE_LOST = "node_lost"
    KILLED = "killed"
    ERROR = "error"


def site_metrics(
    systems: Sequence[SystemStatus],
    jobs: Iterable[JobStatus],
    records: Iterable[JobRecord],
    runs: Mapping[str, Telemetry | None],
) -> list[Metric]:
    """Return all metrics; runs: telemetry by system name."""
    return [*_of_systems(systems), *_of_runs(runs), *_of_jobs(jobs, records)]


def cause_of(record: JobRecord) -> Cause:
    """Return the kind of failure of a FAILED job."""
    if record.exit_code == UsageError.exit_code:
        return Cause.USER_ERROR
    if " lost: rank " in record.cause:
        return Cause.NODE_LOST
    return Cause.KILLED if (record.exit_code or 0) > _KILLED else Cause.ERROR


def _of_systems(systems: Sequence[SystemStatus]) -> Iterator[Metric]:
    def each(name: str, text: str, values: Iterable[float]) -> Metric:
        pairs = zip(systems, values, strict=True)
        return Metric(name, text, tuple(Sample(v, (("system", s.name),)) for s, v in pairs))

    states = (
        Sample(1, (("system", s.name), ("mode", s.mode), ("power", s.power))) for s in systems
    )
    yield Metric("system_info", "Execution mode and power of a CS system.", tuple(states))
    yield each(
        "system_available", "1 while the system accepts jobs.", (not s.unavailable for s in systems)
    )
    yield each(
        "system_leased", "1 while a job holds the system.", (s.job is not None for s in systems)
    )
    yield each(
        "system_queue_length", "Jobs waiting for the system.", (len(s.waiting) for s in systems)
    )


def _of_runs(runs: Mapping[str, Telemetry | None]) -> Iterator[Metric]:
    known = {name: run for name, run in sorted(runs.items()) if run is not None}

    def each(name: str, text: str, values: Mapping[str, float | None]) -> Metric:
        samples = ((system, value) for system, value in values.items() if value is not None)
        return Metric(name, text, tuple(Sample(v, (("system", s),)) for s, v in samples))

    yield each("run_step", "Latest step of the run.", {s: r.step for s, r in known.items()})
    yield each(
        "run_last_step", "Final step of the run.", {s: r.last_step for s, r in known.items()}
    )
    yield each(
        "run_steps_per_second", "Step rate.", {s: r.step_rate_per_s for s, r in known.items()}
    )
    yield each("run_loss", "Loss of the latest step.", {s: r.loss for s, r in known.items()})
    yield each(
        "run_input_wait_ratio",
        "Fraction of the training time in which the wafer waited for input.",
        {s: r.input_share for s, r in known.items()},
    )
    yield each(
        "run_last_progress_timestamp_seconds",
        "Time of the last progress of the run.",
        {s: r.updated_s for s, r in known.items()},
    )


def _of_jobs(jobs: Iterable[JobStatus], records: Iterable[JobRecord]) -> Iterator[Metric]:
    states = Counter(job.state for job in jobs)
    waiting = (Sample(states[state], (("state", state),)) for state in _COUNTED)
    yield Metric("jobs", "Pending and running jobs.", tuple(waiting))
    ended = [record for record in records if not record.is_active]
    counts = Counter(record.state for record in ended)
    by_state = (Sample(count, (("state", state),)) for state, count in sorted(counts.items()))
    yield Metric("jobs_ended", "Ended jobs on record.", tuple(by_state))
    failed = Counter(cause_of(record) for record in ended if record.state is RecordState.FAILED)
    by_cause = (Sample(failed[cause], (("cause", cause),)) for cause in Cause)
    yield Metric("jobs_failed", "Failed jobs on record, by cause.", tuple(by_cause))


def exposition(metrics: Iterable[Metric]) -> str:
    """Format metrics as text for Prometheus; metrics without a sample are omitted."""
    return "".join(line for metric in metrics if metric.samples for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    name = PREFIX + metric.name
    yield f"# HELP {name} {metric.help}\n# TYPE {name} gauge\n"
    for sample in metric.samples:
        labels = ",".join(f'{key}="{_escaped(value)}"' for key, value in sample.labels)
        yield f"{name}{{{labels}}} {_number(sample.value)}\n"


def _number(value: float) -> str:
    """Format a number for Go's parser: integers without a point, other numbers with all digits."""
    number = float(value)
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "+Inf" if number > 0 else "-Inf"
    return str(int(number)) if number.is_integer() else repr(number)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
