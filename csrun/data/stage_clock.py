"""What each stage of an input pipeline costs, measured while it runs."""

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from time import perf_counter, thread_time


@dataclass(slots=True)
class StageTime:
    """One stage's time so far. wall_s - cpu_s is what it waited: for a disk, for a lock, asleep."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


class StageClock:
    """Times the stages of one reader of a pipeline, by the names that `Operator.stage` gives.

    Of stages that run on several threads it adds up the time of all of them. `entered` hears of
    each stage as it begins.
    """

    def __init__(self) -> None:
        self.stages: dict[str, StageTime] = {}
        self.entered: Callable[[str], None] = no_listener
        self._lock = Lock()

    def timed(self, stage: str) -> "Timed":
        """Add the time of the block to a stage."""
        return Timed(self, stage)

    def add(self, stage: str, wall_s: float, cpu_s: float) -> None:
        """Add so much to a stage."""
        with self._lock:
            time = self.stages.setdefault(stage, StageTime())
            time.wall_s += wall_s
            time.cpu_s += cpu_s

    def slowest(self) -> tuple[str, StageTime] | None:
        """The stage that took longest, with its time; None before the first one."""
        return max(self.stages.items(), key=lambda item: item[1].wall_s, default=None)


def no_listener(stage: str) -> None:
    """Nobody wants to know which stage begins."""


class Timed:
    """Times a block. A class: a generator would cost half as much again."""

    __slots__ = ("_clock", "_cpu_s", "_stage", "_wall_s")

    def __init__(self, clock: StageClock, stage: str) -> None:
        self._clock, self._stage = clock, stage

    def __enter__(self) -> None:
        self._clock.entered(self._stage)
        self._wall_s, self._cpu_s = perf_counter(), thread_time()

    def __exit__(self, *raised: object) -> None:
        wall_s, cpu_s = perf_counter() - self._wall_s, thread_time() - self._cpu_s
        self._clock.add(self._stage, wall_s, cpu_s)
