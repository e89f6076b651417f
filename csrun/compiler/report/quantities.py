"""How a report writes numbers: never a zero for what is not zero."""

MISSING = "-"
_PREFIXES = ("", "k", "M", "G", "T", "P", "E")


def count(value: float) -> str:
    """Whole from a hundred on, with three digits below: 479,189 or 0.0421."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(share: float) -> str:
    """A share of 1, with four digits: 99.98% or 0.00421%."""
    return f"{100 * share:.4g}%"


def si(value: float, unit: str) -> str:
    """Three digits and a decimal prefix: 1.54 MB."""
    power = 0
    while value >= 999.5 and power < len(_PREFIXES) - 1:
        value, power = value / 1000, power + 1
    return f"{value:.3g} {_PREFIXES[power]}{unit}"
