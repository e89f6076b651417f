"""Results of benchmarks: one line of JSON per result, ratios of sides measured in one run."""

import statistics
import sys
import time
from collections.abc import Callable, Mapping

import msgspec

PAUSE_S = 0.02


class Result(msgspec.Struct, frozen=True):
    """Median of a side, and of the side that it is compared with.

    value: median over `rounds` of what `unit` says; ratio: value over the baseline's, medians both.
    at_least, at_most: target of the ratio, if there is one.
    """

    bench: str
    workload: str
    side: str
    unit: str
    value: float
    baseline: str
    ratio: float
    rounds: int
    at_least: float | None = None
    at_most: float | None = None

    @property
    def wanted(self) -> str:
        """The target, as the table shows it."""
        bounds = (("≥", self.at_least), ("≤", self.at_most))
        return ", ".join(f"{sign} {bound:g}" for sign, bound in bounds if bound is not None)

    @property
    def missed(self) -> bool:
        """Whether this run missed the target."""
        below = self.at_least is not None and self.ratio < self.at_least
        return below or (self.at_most is not None and self.ratio > self.at_most)

    def print(self) -> None:
        """One line on standard output."""
        sys.stdout.write(msgspec.json.encode(self).decode() + "\n")
        sys.stdout.flush()


def interleaved(sides: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median of each side over rounds in which every side runs once, in turn.

    What disturbs the machine for a while disturbs all sides equally. Each side starts when the
    threads of the one before no longer spin: PyTorch's do for some milliseconds.
    """
    values: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, measure in sides.items():
            time.sleep(PAUSE_S)
            values[name].append(measure())
    return {name: statistics.median(found) for name, found in values.items()}
