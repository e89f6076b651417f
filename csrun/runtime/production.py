"""What making batches costs a streamer, for the headers of their slots."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter_ns

from csrun.data.stages import StageClock
from csrun.runtime.wire.ring import NO_PRODUCTION, UNKNOWN_STAGE, Production


class Meter:
    """Times a reader's batches, and numbers the stages that its clock names.

    `cost` is that of the last batch; `who` makes them, e.g. `this streamer`.
    """

    def __init__(self, clock: StageClock, who: str) -> None:
        self.cost = NO_PRODUCTION
        self._who = who
        self._clock = clock
        self._numbers: dict[str, int] = {}
        self._batches, self._spent_ns = 0, 0

    @property
    def stages(self) -> tuple[str, ...]:
        """The stages seen so far, in the order of their numbers."""
        return tuple(self._numbers)

    @contextmanager
    def producing(self, index: int) -> Iterator[None]:
        """Time the block, which makes batch `index`; an error in it gets the numbers so far."""
        started = perf_counter_ns()
        try:
            yield
        except Exception as error:
            error.add_note(self._story(index))
            raise
        ns = perf_counter_ns() - started
        self._batches += 1
        self._spent_ns += ns
        self.cost = Production(ns, *self._slowest())

    def _slowest(self) -> tuple[int, int]:
        for name in self._clock.stages:
            self._numbers.setdefault(name, len(self._numbers))
        slowest = self._clock.slowest()
        if slowest is None:
            return UNKNOWN_STAGE, 0
        name, time = slowest
        return self._numbers[name], int(time.wall_s * 1e9 / self._batches)

    def _story(self, index: int) -> str:
        if not self._batches:
            return f"{self._who} was at batch {index}, its first"
        rate = self._batches / (self._spent_ns / 1e9)
        return (
            f"{self._who} was at batch {index}; it had made {self._batches} batches, "
            f"{rate:.0f} batches/s"
        )
