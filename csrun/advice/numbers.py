"""Formatting of numbers in reports, tables and plots."""

from collections.abc import Sequence
from math import floor, log10


def count(value: float) -> str:
    """Format a number: integer from 100 on, three digits below."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def several(number: int, noun: str) -> str:
    """Format a count with its noun: 1 node, 2 nodes."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def percent(share: float) -> str:
    """Format a fraction as percent with one decimal."""
    return f"{100 * share:.1f}%"


def deviation(share: float) -> str:
    """Format a deviation as percent with its sign; zero is +0.0%."""
    return f"{round(100 * share, 1) + 0.0:+.1f}%"


def spread(values: Sequence[float]) -> float:
    """Half the range of the middle two thirds: the standard deviation of a normal distribution, but
    robust against a few stalls. 0 for fewer than two values.
    """
    ordered, last = sorted(values), len(values) - 1
    return (ordered[round(0.84 * last)] - ordered[round(0.16 * last)]) / 2 if last > 0 else 0.0


def with_spread(value: float, spread: float, decimals: int = 2) -> str:
    """Format a value with its spread, and only significant digits: 20.1 ± 5.8.

    spread: shown with two digits; 0 if unknown.
    decimals: maximum number shown.
    """
    shown = decimals if spread <= 0 else min(decimals, 1 - floor(log10(spread)))
    spread = round(spread, shown)
    text = f"{round(value, shown):,.{max(shown, 0)}f}"
    return f"{text} ± {spread:,.{max(shown, 0)}f}" if spread > 0 else text


def round_ticks(highest: float, most: int) -> tuple[float, ...]:
    """Return at most `count` round ticks from 0 to `highest`, in steps of 1, 2 or 5 times 10^n."""
    least_step = highest / (most - 1)
    power = 10.0 ** floor(log10(least_step))
    # tolerance: 0.3 / 3 is less than 0.1
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= least_step * 0.9999)
    return tuple(step * index for index in range(most) if step * index <= highest * 1.0001)
