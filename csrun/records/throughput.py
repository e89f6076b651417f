"""Rate and GlobalRate, the two throughputs that a run logs.

Source: the original's log lines; the smoothing is its tracker's, new = (1 - 0.4)·local + 0.4·old
"""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

SMOOTHING = 0.4


@dataclass(frozen=True)
class Rates:
    """Units: samples a second. rate: smoothed over logging steps; global_rate: since the load."""

    rate: float
    global_rate: float


class RateTracker:
    """Counts samples from the moment the executable was loaded, which is when it is made."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self._loaded = self._last_time = clock()
        self._samples = self._last_samples = 0
        self._rate: float | None = None

    def received(self, samples: int) -> None:
        """The outputs of so many samples have been received, all in all."""
        self._samples = samples

    def log(self) -> Rates:
        """The rates at a logging step."""
        now = self._clock()
        local = _per_second(self._samples - self._last_samples, now - self._last_time)
        if self._rate is None:
            self._rate = local
        else:
            self._rate = (1 - SMOOTHING) * local + SMOOTHING * self._rate
        self._last_time, self._last_samples = now, self._samples
        return Rates(self._rate, _per_second(self._samples, now - self._loaded))


def _per_second(samples: int, seconds: float) -> float:
    return samples / seconds if seconds > 0 else 0.0
