"""What a benchmark gives: one line of JSON a result, ratios of sides measured in one run."""

import statistics
import sys
from collections.abc import Callable, Mapping

import msgspec


class Result(msgspec.Struct, frozen=True):
    """A median, beside the one that it is compared with.

    value: median over `rounds` of what `unit` says; ratio: value over the baseline's, medians both.
    """

    bench: str
    workload: str
    side: str
    unit: str
    value: float
    baseline: str
    ratio: float
    rounds: int

    def print(self) -> None:
        """One line on standard output."""
        sys.stdout.write(msgspec.json.encode(self).decode() + "\n")
        sys.stdout.flush()


def interleaved(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median of each side over rounds in which every side runs once, in turn.

    What disturbs the machine for a while disturbs all sides alike.
    """
    values: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            values[name].append(measure())
    return {name: statistics.median(found) for name, found in values.items()}
