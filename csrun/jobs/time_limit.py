"""Time limits in Slurm's formats, and formatted durations. Pure."""

import re
from datetime import UTC, datetime

from csrun.base.errors import UsageError

EXIT_TIME_LIMIT = 143  # exit code of SIGTERM, with which the limit ends a job, as in srun
FORMS = "M, M:S, H:M:S, D-H, D-H:M or D-H:M:S"
_MINUTE_S, _HOUR_S, _DAY_S = 60, 3600, 86400
LONGEST_DAYS = 10_000
_SMALL = 10  # units after which an age also shows the next smaller unit
_N = r"(\d{1,20})"
_WITH_DAYS = re.compile(rf"{_N}-{_N}(?::{_N})?(?::{_N})?", re.ASCII)
_WITHOUT_DAYS = re.compile(rf"(?:(?:{_N}:)?{_N}:{_N})|{_N}", re.ASCII)


def parse(text: str, option: str = "--time-limit") -> int | None:
    """Parse a time limit to seconds; None for 0, which means no limit in Slurm.

    Source: sbatch(1), --time
    Raises: UsageError for another form, or more than LONGEST_DAYS
    """
    if match := _WITH_DAYS.fullmatch(text):
        days, hours, minutes, seconds = (int(number or 0) for number in match.groups())
    elif match := _WITHOUT_DAYS.fullmatch(text):
        days = 0
        hours, timed, seconds, alone = (int(number or 0) for number in match.groups())
        minutes = timed + alone
    else:
        raise UsageError(f"{option}: must be minutes, or one of {FORMS}, got {text!r}")
    limit_s = days * _DAY_S + hours * _HOUR_S + minutes * _MINUTE_S + seconds
    if limit_s > LONGEST_DAYS * _DAY_S:
        raise UsageError(f"{option}: must be at most {LONGEST_DAYS} days, got {text!r}")
    return limit_s or None


def reached(limit_s: int) -> str:
    """Return the message for a job that reached its time limit."""
    return f"time limit of {format_duration(limit_s)} reached"


def format_duration(seconds: float) -> str:
    """Format a duration like squeue: M:SS, H:MM:SS or D-HH:MM:SS."""
    minutes, second = divmod(int(seconds), _MINUTE_S)
    hours, minute = divmod(minutes, 60)
    days, hour = divmod(hours, 24)
    if days:
        return f"{days}-{hour:02}:{minute:02}:{second:02}"
    return f"{hour}:{minute:02}:{second:02}" if hour else f"{minute}:{second:02}"


def format_age(moment: datetime) -> str:
    """Format the time since a moment like kubectl: its largest unit, or two if the first is
    small.
    """
    seconds = max(0, int((datetime.now(UTC) - moment).total_seconds()))
    units = (("d", _DAY_S), ("h", _HOUR_S), ("m", _MINUTE_S), ("s", 1))
    for (unit, size), below in zip(units, (*units[1:], None), strict=True):
        if seconds >= size or below is None:
            count, rest = divmod(seconds, size)
            has_rest = below is not None and count < _SMALL and rest >= below[1]
            return f"{count}{unit}" + (
                f"{rest // below[1]}{below[0]}" if has_rest and below else ""
            )
    return ""


def when(time: datetime | None) -> str:
    """Format a moment in the local time zone, to the second; empty for None."""
    return "" if time is None else f"{time.astimezone():%Y-%m-%d %H:%M:%S}"
