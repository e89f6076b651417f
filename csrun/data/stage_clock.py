"""What each stage of an input pipeline costs, measured while it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

    @contextmanager
    def timed(self, stage: str) -> Iterator[None]:
        """Add the time of the block to a stage."""
        self.entered(stage)
        wall, cpu = perf_counter(), thread_time()
        try:
            yield
        finally:
            wall, cpu = perf_counter() - wall, thread_time() - cpu
            with self._lock:
                time = self.stages.setdefault(stage, StageTime())
                time.wall_s += wall
                time.cpu_s += cpu

    def slowest(self) -> tuple[str, StageTime] | None:
        """The stage that took longest, with its time; None before the first one."""
        return max(self.stages.items(), key=lambda item: item[1].wall_s, default=None)


def no_listener(stage: str) -> None:
    """Nobody wants to know which stage begins."""
