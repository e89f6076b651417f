"""Newest logged steps of a run, with what is shown of all of them, updated with each value."""

from collections import deque
from collections.abc import Iterator
from itertools import islice

from csrun.records.ledger import Row
from csrun.watch.site_snapshot import LossPoint, TimeShare

RATE_POINTS = 10  # newest points from which steps per second are computed
MOST_LOSSES = 500
_SECONDS = "seconds/"
_LEDGER_TAGS = {_SECONDS + row.title: row.title for row in Row}


class LoggedStep:
    """Values logged at one step. Units: wall_s in seconds since the epoch"""

    def __init__(self, step: int, wall_s: float) -> None:
        self.step, self.wall_s = step, wall_s
        self.values: dict[str, float] = {}


class LoggedSteps:
    """Newest logged steps, oldest first; most: None for all.

    The losses and the sums of the ledger's rows are not computed again for each display, because a
    long run has many steps.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._steps: deque[LoggedStep] = deque()
        self._losses: deque[LossPoint] = deque(maxlen=MOST_LOSSES)
        self._seconds: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[LoggedStep]:
        return iter(self._steps)

    def since(self, index: int) -> Iterator[LoggedStep]:
        """Iterate over the steps from this index on."""
        return islice(self._steps, index, None)

    @property
    def last(self) -> LoggedStep | None:
        """The newest step."""
        return self._steps[-1] if self._steps else None

    @property
    def losses(self) -> tuple[LossPoint, ...]:
        """Losses at the newest steps, at most 500."""
        return tuple(self._losses)

    def add(self, step: int, wall_s: float, tag: str, value: float) -> None:
        """Add a value; a new step begins if the step's number differs from the newest one's."""
        if not self._steps or self._steps[-1].step != step:
            if len(self._steps) == self._most:
                self._forget(self._steps.popleft())
            self._steps.append(LoggedStep(step, wall_s))
        values = self._steps[-1].values
        if (row := _LEDGER_TAGS.get(tag)) is not None:
            self._seconds[row] = self._seconds.get(row, 0.0) + value - values.get(tag, 0.0)
        elif tag == "loss":
            if tag in values:
                self._losses.pop()
            self._losses.append(LossPoint(step, value))
        values[tag] = value

    def _forget(self, step: LoggedStep) -> None:
        if self._losses and self._losses[0].step == step.step:
            self._losses.popleft()
        for tag, row in _LEDGER_TAGS.items():
            if tag in step.values:
                self._seconds[row] = max(0.0, self._seconds[row] - step.values[tag])

    def steps_per_s(self) -> float | None:
        """Return steps per second over the newest points; None before there are two in order."""
        if len(self._steps) < 2:
            return None
        first, last = self._steps[-min(RATE_POINTS, len(self._steps))], self._steps[-1]
        steps, seconds = last.step - first.step, last.wall_s - first.wall_s
        return steps / seconds if steps > 0 and seconds > 0 else None

    def time_shares(self) -> tuple[TimeShare, ...]:
        """Return the ledger's rows over these steps, largest first."""
        total = sum(self._seconds.values())
        if total <= 0:
            return ()
        rows = (TimeShare(row, s, s / total) for row, s in self._seconds.items())
        return tuple(sorted(rows, key=lambda each: -each.seconds))
