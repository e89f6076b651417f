"""What making batches costs a streamer, for the headers of their slots."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter_ns

from csrun.data.stage_clock import StageClock, unheard
from csrun.runtime.remote.ring import BatchSender
from csrun.runtime.wire.ring import NO_PRODUCTION, UNKNOWN_STAGE, Production, RingWriter


class Meter:
    """Times a reader's batches, and numbers the stages that its clock names.

    `cost` is that of the last batch; `who` makes them, e.g. `this streamer`.
    """

    def __init__(self, clock: StageClock, who: str) -> None:
        self.cost = NO_PRODUCTION
        self._who = who
        self._clock = clock
        self._numbers: dict[str, int] = {}
        self._lock = Lock()
        self._batches, self._spent_ns = 0, 0

    @contextmanager
    def shown_in(self, ring: RingWriter | BatchSender) -> Iterator[None]:
        """Let the ring's reader see which stage the next batch is in, meanwhile."""
        self._clock.entered = lambda stage: ring.enter(self._number(stage))
        try:
            yield
        finally:
            self._clock.entered = unheard

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
        slowest = self._clock.slowest()
        if slowest is None:
            return UNKNOWN_STAGE, 0
        name, time = slowest
        return self._number(name), int(time.wall_s * 1e9 / self._batches)

    def _number(self, stage: str) -> int:
        number = self._numbers.get(stage)
        if number is None:
            with self._lock:  # stages run on several threads
                number = self._numbers.setdefault(stage, len(self._numbers))
        return number

    def _story(self, index: int) -> str:
        if not self._batches:
            return f"{self._who} was at batch {index}, its first"
        rate = self._batches / (self._spent_ns / 1e9)
        return (
            f"{self._who} was at batch {index}; batches made before: {self._batches}, "
            f"at {rate:.0f} batches/s"
        )
