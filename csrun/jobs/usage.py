"""Accounting: use of CS systems by user and account, from the records of jobs. Pure."""

from collections.abc import Iterable, Iterator
from datetime import datetime

import msgspec

from csrun.jobs.period import Period
from csrun.jobs.record import JobRecord

_HOUR_S = 3600


class SystemUsed(msgspec.Struct, frozen=True):
    """One job's use of one system; `ended` is None while it has it; `hours` are those in the
    period.
    """

    system: str
    job: int
    name: str
    user: str
    account: str
    began: datetime
    ended: datetime | None
    hours: float


class Usage(msgspec.Struct, frozen=True):
    """Use of one system by the jobs of a user and account."""

    user: str
    account: str
    system: str
    jobs: int
    hours: float


def uses_of(records: Iterable[JobRecord], period: Period) -> list[SystemUsed]:
    """Return all uses of systems in a period, in the order of their starts."""
    found = (used for record in records for used in _of(record, period))
    return sorted(found, key=lambda used: (used.began, used.job, used.system))


def _of(record: JobRecord, period: Period) -> Iterator[SystemUsed]:
    for use in record.systems:
        # a job whose chief was killed has not recorded when it released its system
        ended = use.released or record.ended
        if use.taken is None or not period.overlaps(use.taken, ended):
            continue
        until = min(ended or period.until, period.until)
        hours = (until - max(use.taken, period.since)).total_seconds() / _HOUR_S
        yield SystemUsed(
            use.system,
            record.job_id,
            record.name,
            record.user,
            record.account,
            use.taken,
            ended,
            max(0.0, hours),
        )


def totals(uses: Iterable[SystemUsed]) -> list[Usage]:
    """System-hours by user, account and system, sorted by these."""
    hours: dict[tuple[str, str, str], float] = {}
    jobs: dict[tuple[str, str, str], set[int]] = {}
    for used in uses:
        key = used.user, used.account, used.system
        hours[key] = hours.get(key, 0.0) + used.hours
        jobs.setdefault(key, set()).add(used.job)
    return [Usage(*key, len(jobs[key]), hours[key]) for key in sorted(hours)]
