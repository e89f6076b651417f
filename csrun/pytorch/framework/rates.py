"""Rates in a script's log lines, under the names that its performance record uses."""

from csrun.records import performance


class RateTracker:
    """Counter of samples, from the first batch on."""

    def __init__(self) -> None:
        self._tracker = performance.RateTracker()
        self._count = self._partial_count = 0

    def add(self, samples: int) -> None:
        """Count samples of a step."""
        self._count += samples
        self._tracker.received(self._count)

    def log(self) -> performance.Rates:
        """Return the rates at a log line."""
        return self._tracker.log()

    def rate(self) -> float:
        """Return the smoothed rate, samples a second."""
        return self._tracker.log().rate

    def global_rate(self) -> float:
        """Return the rate since the first batch, samples a second."""
        return self._tracker.log().global_rate
