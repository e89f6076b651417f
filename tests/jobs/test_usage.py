"""System-hours from records of jobs: within a period, by account."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from csrun.base.errors import UsageError
from csrun.context.job import LeaseRecord
from csrun.jobs.period import Period, moment, period_of
from csrun.jobs.record import JobRecord, Launcher, RecordState
from csrun.jobs.usage import Usage, totals, uses_of

NOON = datetime(2026, 11, 20, 12, tzinfo=UTC)


def hours(count: float) -> datetime:
    return NOON + timedelta(hours=count)


def record(job: int, user: str, *uses: tuple[str, float, float | None]) -> JobRecord:
    systems = tuple(
        LeaseRecord(name, hours(0), hours(begin), None if end is None else hours(end))
        for name, begin, end in uses
    )
    return JobRecord(job, "run.py", user, 0, (), "", 1, 1, Launcher("here", 1, 1), hours(0),
                     RecordState.RUNNING, systems=systems, account="lab")  # fmt: skip


JOBS = [
    record(1, "ada", ("cs2-01", 0, 2), ("cs2-01", 3, 4)),
    record(2, "ada", ("cs2-01", 4, None), ("cs2-02", 4, None)),
    record(3, "bob", ("cs2-02", 1, 1.5)),
]


def test_hours_are_those_of_the_period() -> None:
    found = totals(uses_of(JOBS, Period(hours(1), hours(6))))
    assert found == [
        Usage("ada", "lab", "cs2-01", 2, 1 + 1 + 2),
        Usage("ada", "lab", "cs2-02", 1, 2),
        Usage("bob", "lab", "cs2-02", 1, 0.5),
    ]


def test_a_job_that_ended_without_giving_its_system_back_had_it_to_its_end() -> None:
    lost = msgspec.structs.replace(JOBS[1], state=RecordState.LOST, ended=hours(5))
    assert [use.hours for use in uses_of([lost], Period(hours(0), hours(9)))] == [1, 1]


def test_a_system_that_was_only_waited_for_is_not_counted() -> None:
    waits = msgspec.structs.replace(JOBS[2], systems=(LeaseRecord("cs2-01", hours(0)),))
    assert uses_of([waits], Period(hours(0), hours(9))) == []


@pytest.mark.parametrize(("text", "expected"), [
    ("7d", NOON - timedelta(days=7)), ("12h", NOON - timedelta(hours=12)),
    ("30m", NOON - timedelta(minutes=30)), ("2026-11-20T08:30+00:00", hours(-3.5)),
])  # fmt: skip
def test_moments_of_a_command_line(text: str, expected: datetime) -> None:
    assert moment("--since", text, NOON) == expected


@pytest.mark.parametrize("text", ["7", "yesterday", "999999d", "2026-13-01"])
def test_what_is_no_moment(text: str) -> None:
    with pytest.raises(UsageError, match="--since: must be 7d, 12h or 30m ago"):
        moment("--since", text, NOON)


def test_a_period_that_ends_before_it_begins() -> None:
    with pytest.raises(UsageError, match="--since must be before --until"):
        period_of("1h", "2h")
