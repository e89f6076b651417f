"""Time period as given on a command line. Pure except for the clock."""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from csrun.base.errors import UsageError
from csrun.context.job import now

_AGO = re.compile(r"(\d{1,6})([dhm])")
_UNITS = {"d": "days", "h": "hours", "m": "minutes"}


@dataclass(frozen=True)
class Period:
    """From `since` on, before `until`."""

    since: datetime
    until: datetime

    def overlaps(self, began: datetime, ended: datetime | None) -> bool:
        """True if any part of a span is within the period; a span without an end continues."""
        return began <= self.until and (ended is None or ended >= self.since)


def period_of(since: str | None, until: str | None) -> Period:
    """Return the period of two arguments of a command line; without them, all time up to now.

    Raises: UsageError
    """
    here = now()
    begin = datetime.min.replace(tzinfo=UTC) if since is None else moment("--since", since, here)
    end = here if until is None else moment("--until", until, here)
    if begin > end:
        raise UsageError(f"--since must be before --until, got {since} and {until or 'now'}")
    return Period(begin, end)


def moment(option: str, text: str, here: datetime) -> datetime:
    """Parse `7d`, `12h` or `30m` before `here`, or a date or time in the local time zone.

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
