"""Number formats of reports: no exponents, and enough digits that nonzero numbers do not show as
zero.
"""

from collections.abc import Sequence
from decimal import Decimal

_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def plain(value: float, digits: int) -> str:
    """Format a number with significant digits: 0.00004243 or 15.2."""
    return format(Decimal(f"{value:.{digits}g}"), "f")


def count(value: float) -> str:
    """Format an integer from a hundred to ten million, else three digits: 479,189, 0.0421 or 1.86
    G.
    """
    if value >= 1e7:
        return si(value, "")
    return f"{value:,.0f}" if value >= 100 else plain(value, 3)


def percent(share: float) -> str:
    """Format a share of 1 with four digits: 99.98%; a tiny one as "below 0.01%"."""
    if 0 < share < 1e-4:
        return "below 0.01%"
    return f"{plain(100 * share, 4)}%"


def si(value: float, unit: str) -> str:
    """Format with three digits and a decimal prefix: 1.54 MB."""
    power = 0
    while value >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return f"{plain(value, 3)} {_PREFIXES[power]}{unit}"


def listed(names: Sequence[str]) -> str:
    """List a few names; of many the first ones and the last."""
    return ", ".join(names if len(names) <= 4 else (names[0], names[1], "…", names[-1]))
