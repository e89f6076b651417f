"""A period of time as a command line names it. Pure but for the clock."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from csrun.base.errors import UsageError
from csrun.context.job import now

_AGO = re.compile(r"(\d{1,6})([dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


@dataclass(frozen=True)
class Period:
    """From `since` on, up to `until`."""

    since: datetime
    until: datetime

    def overlaps(self, began: datetime, ended: datetime | None) -> bool:
        """True if any part of a span lies within it; one without an end goes on."""
        return began <= self.until and (ended is None or ended >= self.since)


def period_of(since: str | None, until: str | None) -> Period:
    """The period between two words of a command line; without them, all that was, up to now.

    Raises: UsageError
    """
    here = now()
    begin = datetime.min.replace(tzinfo=UTC) if since is None else moment("--since", since, here)
    end = here if until is None else moment("--until", until, here)
    if begin > end:
        raise UsageError(f"--since must be before --until, got {since} and {until or 'now'}")
    return Period(begin, end)


def moment(option: str, text: str, here: datetime) -> datetime:
    """`7d`, `12h` or `30m` before `here`, or a date, or a time in this place's zone.

    Raises: UsageError
    """
    try:
        if ago := _AGO.fullmatch(text):
            return here - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError) as error:
        raise UsageError(
            f"{option}: must be 7d, 12h or 30m ago, or a time such as 2026-11-20 or"
            f" 2026-11-20T08:30, got {text!r}"
        ) from error
