"""Ledger of a training's time: its breakdown, and the maximum gain from removing each wait.

The chief's clock is split into intervals without gaps. Intervals of step orders are split further
by the wafer's reported waits. The remainder is the row `other`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from time import perf_counter

import msgspec

MOST_LINES = 4  # rows below the total, in the log


class Row(Enum):
    """Row of the table: its title, the side it belongs to, and its components."""

    COMPUTE = "compute", "wafer", "computing visits"
    INPUT = "input", "streamers", "waiting for batches"
    WEIGHTS = "weights", "memoryx", "waiting for weight groups and their updates"
    FIRST_GROUP = "first_group", "memoryx", "the same for a step's first group"
    CHIEF = "chief", "chief", "step dispatch, log lines, events"
    CHECKPOINT = "checkpoint", "chief", "steps waiting for checkpoints"
    COMPILE = "compile", "chief", "programs compiled during the training"
    SCRIPT = "script", "script", "user code between steps, evaluations"
    OTHER = "other", "", "everything else"

    def __init__(self, title: str, whose: str, what: str) -> None:
        self.title, self.whose, self.what = title, whose, what

    @property
    def is_wait(self) -> bool:
        """Return whether it is a wait that a faster run could avoid."""
        return self not in (Row.COMPUTE, Row.OTHER)


class LedgerRow(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One row. at_most: maximum speedup of the training without it; None for work.

    Units: seconds
    """

    row: str
    whose: str
    seconds: float
    share: float
    at_most: float | None


@dataclass(frozen=True)
class StepTimes:
    """Times of an order's steps: total, and the waits in it.

    Units: seconds
    """

    seconds: float
    input_s: float
    weights_s: float
    first_group_s: float
    checkpoint_s: float = 0.0


class Ledger:
    """Seconds of each row since its creation; `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._began = self._marked = clock()
        self._seconds = dict.fromkeys(Row, 0.0)
        self._reported = dict(self._seconds)

    def exclude_pause(self, seconds: float) -> None:
        """Exclude a time without training from all rows."""
        self._began += seconds
        self._marked += seconds

    def mark(self, row: Row) -> None:
        """Assign the time since the last mark to a row."""
        now = self._clock()
        self._seconds[row] += now - self._marked
        self._marked = now

    def mark_steps(self, steps: StepTimes, rest: Row = Row.CHIEF) -> None:
        """Assign the time since the last mark to an order's steps, and the rest to another row.

        The wafer's clock belongs to another process; its seconds are limited to ours.
        """
        now = self._clock()
        passed = now - self._marked
        self._marked = now
        seconds = min(steps.seconds, passed)
        waits = {
            Row.INPUT: steps.input_s,
            Row.WEIGHTS: steps.weights_s,
            Row.FIRST_GROUP: steps.first_group_s,
            Row.CHECKPOINT: steps.checkpoint_s,
        }
        scale = min(1.0, seconds / waited) if (waited := sum(waits.values())) else 1.0
        parts = {row: wait * scale for row, wait in waits.items()}
        parts[rest] = passed - seconds
        parts[Row.COMPUTE] = passed - sum(parts.values())
        for row, part in parts.items():
            self._seconds[row] += part

    def since_report(self) -> dict[str, float]:
        """Return the seconds of each row since the last call, by title; for events."""
        found = {row.title: self._seconds[row] - self._reported[row] for row in Row}
        self._reported = dict(self._seconds)
        found.pop(Row.OTHER.title)
        return found

    def largest_wait(self) -> LedgerRow:
        """Return the avoidable row with the most time so far."""
        wall = self._clock() - self._began
        largest = max((row for row in Row if row.is_wait), key=self._seconds.__getitem__)
        return _row(largest, self._seconds[largest], wall)

    def share(self, row: Row) -> float:
        """Return a row's share of the time so far, 0 to 1."""
        wall = self._clock() - self._began
        return self._seconds[row] / wall if wall > 0 else 0.0

    def rows(self) -> tuple[LedgerRow, ...]:
        """Return the table so far. Its rows add up to the time since the ledger was created."""
        wall = self._clock() - self._began
        seconds = dict(self._seconds)
        seconds[Row.OTHER] = wall - sum(seconds.values())
        return tuple(_row(row, seconds[row], wall) for row in Row)


def _row(row: Row, seconds: float, wall: float) -> LedgerRow:
    share = seconds / wall if wall else 0.0
    at_most = wall / (wall - seconds) if row.is_wait and seconds < wall else None
    return LedgerRow(row.title, row.whose, seconds, share, at_most)


#: Row titles in the log; the JSON and the events have Row's.
_LOG_TITLES = {
    Row.COMPUTE.title: "compute (wafer)",
    Row.INPUT.title: "waiting for input (streamers)",
    Row.WEIGHTS.title: "weights and updates (MemoryX)",
    Row.FIRST_GROUP.title: "first group's update (MemoryX)",
    Row.CHIEF.title: "dispatch and logging (chief)",
    Row.CHECKPOINT.title: "checkpoints (chief)",
    Row.COMPILE.title: "compiles during the run (chief)",
    Row.SCRIPT.title: "script between steps",
}


def lines(rows: tuple[LedgerRow, ...]) -> list[str]:
    """Return the table for the log: the total and the largest rows, five lines in all."""
    wall = sum(row.seconds for row in rows)
    largest = sorted(rows, key=lambda row: row.seconds, reverse=True)[:MOST_LINES]
    return [f"Training time by cause ({wall:.1f} s):", *map(_line, largest)]


def _line(row: LedgerRow) -> str:
    title = _LOG_TITLES.get(row.row, row.row)
    gain = f"; without this wait: up to {row.at_most:.2f}x faster" if row.at_most else ""
    return f"  {title}: {row.seconds:.1f} s, {row.share:.1%}{gain}"
