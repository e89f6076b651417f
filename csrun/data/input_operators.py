"""Operators of an input pipeline as written by its author, and times of its stages."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from threading import Lock
from time import perf_counter, thread_time
from types import FrameType
from typing import Any

from csrun.base.source_folder import SOURCE_FOLDER

DATA = SOURCE_FOLDER / "data"


class Level(StrEnum):
    """Elements that an operator works on."""

    SAMPLE = "sample"
    BATCH = "batch"


@dataclass(frozen=True)
class InputOperator:
    """Operation of a chain.

    options: its arguments by name, with defaults; a function by its name. where: file and line of
    the user's call, e.g. `data.py:34`; empty if unknown.
    """

    name: str
    level: Level
    options: Mapping[str, Any] = field(default_factory=dict)
    where: str = ""

    @property
    def stage(self) -> str:
        """Label of its time: `map load`, `batch`, `from_batches generator`."""
        what = self.options.get("iterable" if self.name == "from_batches" else "function")
        return f"{self.name} {what}" if what else self.name

    def failed_at(self, what: str) -> str:
        """Note for an exception of the user's function."""
        place = f" ({self.where})" if self.where else ""
        return f"input_fn: {self.stage}{place} failed at {what}"


def name_of(function: Callable[..., Any]) -> str:
    """Name of a user's function in a report; a lambda by its line."""
    if isinstance(function, partial):
        return name_of(function.func)
    name: str = getattr(function, "__name__", type(function).__name__)
    return f"lambda:{function.__code__.co_firstlineno}" if name == "<lambda>" else name


def call_site() -> str:
    """Return file and line of the innermost call from outside csrun; empty if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and Path(frame.f_code.co_filename).is_relative_to(DATA):
        frame = frame.f_back
    # Called by csrun itself, for example by the loop: there is no line of the user to name.
    if frame is None or Path(frame.f_code.co_filename).is_relative_to(SOURCE_FOLDER):
        return ""
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


@dataclass(slots=True)
class StageTime:
    """Time of a stage so far; wall_s - cpu_s is spent waiting for a disk, a lock or a timer."""

    wall_s: float = 0.0
    cpu_s: float = 0.0


class StageClock:
    """Times of the stages of one reader of a pipeline, by `InputOperator.stage`.

    Times of a stage on several threads are added up. `entered` is called as a stage begins.
    """

    def __init__(self) -> None:
        self.stages: dict[str, StageTime] = {}
        self.entered: Callable[[str], None] = no_listener
        self._lock = Lock()

    def timed(self, stage: str) -> "Timed":
        """Add the time of the block to a stage."""
        return Timed(self, stage)

    def add(self, stage: str, wall_s: float, cpu_s: float) -> None:
        """Add a time to a stage."""
        with self._lock:
            time = self.stages.setdefault(stage, StageTime())
            time.wall_s += wall_s
            time.cpu_s += cpu_s

    def slowest(self) -> tuple[str, StageTime] | None:
        """Return the slowest stage with its time; None before the first one."""
        stages = list(self.stages.items())  # a copy, as another thread may add a stage meanwhile
        return max(stages, key=lambda item: item[1].wall_s, default=None)


def no_listener(stage: str) -> None:
    """Ignore the beginning of a stage."""


class Timed:
    """Timer of a block; a class, as a generator costs 1.5 times as much."""

    __slots__ = ("_clock", "_cpu_s", "_stage", "_wall_s")

    def __init__(self, clock: StageClock, stage: str) -> None:
        self._clock, self._stage = clock, stage

    def __enter__(self) -> None:
        self._clock.entered(self._stage)
        self._wall_s, self._cpu_s = perf_counter(), thread_time()

    def __exit__(self, *raised: object) -> None:
        wall_s, cpu_s = perf_counter() - self._wall_s, thread_time() - self._cpu_s
        self._clock.add(self._stage, wall_s, cpu_s)


def sequential_reason(operators: Sequence[InputOperator]) -> tuple[str, str]:
    """Return why a chain is a stream, and the remedy."""
    source = operators[0]
    if "iterable" in source.options:
        return f"it returned a {source.options['iterable']}", "return a csrun.data.Dataset instead"
    causes = [op.name for op in operators if op.name in ("filter", "shuffle")]
    what = f"{source.options['format']} files" if source.name == "from_files" else causes[0]
    return f"its chain has {what}", "shard the data with shard_files or shard"
