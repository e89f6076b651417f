"""Progress of a run: to its launcher, this terminal, and the system's admin shell."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock, Timer

from csrun.compiler import STAGES
from csrun.context import Progress, TaskContext, Telemetry
from csrun.context.job import TELEMETRY_FILE

LEAST_INTERVAL_S = 0.2
TELEMETRY_INTERVAL_S = 0.5  # updates of a file that a person reads
APPEARS_AFTER_S = 0.4  # a shorter compile would only flicker

Show = Callable[[Progress], None]
Begin = Callable[[str], None]


@contextmanager
def progress_display(context: TaskContext | None) -> Iterator[Show]:
    """Return a function that shows progress, at most a few times per second."""
    with _display(context) as show:
        yield _seldom(show)


@contextmanager
def compile_display(context: TaskContext | None) -> Iterator[Begin]:
    """Return a function that shows the current stage of a long compile."""
    with _display(context) as show:
        stages = _StageProgress(show)
        timer = Timer(APPEARS_AFTER_S, stages.appear)
        timer.start()
        try:
            yield stages.begin
        finally:
            timer.cancel()
            timer.join()
            stages.end()


class _StageProgress:
    """Display of the current stage of a compile, hidden until a timer calls `appear`."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._lock = Lock()
        self._now = Progress("compiling", 0, len(STAGES))
        self._begun = 0
        self._is_shown = False

    def begin(self, name: str) -> None:
        with self._lock:
            self._now = Progress("compiling", self._begun, len(STAGES), name)
            self._begun += 1
            if self._is_shown:
                self._show(self._now)

    def appear(self) -> None:
        with self._lock:
            self._is_shown = True
            self._show(self._now)

    def end(self) -> None:
        if self._is_shown:
            self._show(Progress("compiling", len(STAGES), len(STAGES)))


@contextmanager
def _display(context: TaskContext | None) -> Iterator[Show]:
    if context is not None:
        link = context.link()
        try:
            yield link.progress
        finally:
            link.close()
    elif sys.stdout is not None and sys.stdout.isatty():
        from csrun.context.terminal_bars import ProgressBars

        bars = ProgressBars()
        try:
            yield bars.update
        finally:
            bars.close()
    else:
        yield lambda progress: None


def _seldom(show: Show) -> Show:
    last = 0.0

    def show_at_intervals(progress: Progress) -> None:
        nonlocal last
        if time.monotonic() - last >= LEAST_INTERVAL_S or progress.done == progress.total:
            last = time.monotonic()
            show(progress)

    return show_at_intervals


@contextmanager
def telemetry_published(
    show: Show, job_dir: Path | None, systems: tuple[str, ...], arena_bytes: Callable[[], int]
) -> Iterator[Show]:
    """Return a function that shows progress and publishes it in the job's folder, if any.

    The admin shell of the system reads it there while the run holds the system. arena_bytes:
    current arena of each wafer.
    """
    if job_dir is None:
        yield show
        return
    meter = _TelemetryMeter(systems, arena_bytes)

    def show_and_publish(progress: Progress) -> None:
        show(progress)
        if (telemetry := meter.read(progress, time.time())) is not None:
            with suppress(OSError):  # a full disk must not end the run
                telemetry.write(job_dir)

    try:
        yield show_and_publish
    finally:
        (job_dir / TELEMETRY_FILE).unlink(missing_ok=True)


class _TelemetryMeter:
    """Telemetry of a run, with the rate since the previous reading."""

    def __init__(self, systems: tuple[str, ...], arena_bytes: Callable[[], int]) -> None:
        self._systems = systems
        self._arena_bytes = arena_bytes
        self._last: tuple[int, float] | None = None  # step, time

    def read(self, progress: Progress, now: float) -> Telemetry | None:
        rate = None
        if self._last is not None:
            step, then = self._last
            if now - then < TELEMETRY_INTERVAL_S:
                return None
            rate = (progress.done - step) / (now - then)
        self._last = (progress.done, now)
        return Telemetry(
            systems=self._systems,
            run=progress.what,
            step=progress.done,
            last_step=progress.total or None,
            step_rate_per_s=rate,
            arena_bytes=self._arena_bytes(),
            detail=progress.text,
            updated_s=now,
            loss=progress.loss,
            input_share=progress.input_share,
            straggler=progress.straggler,
        )
