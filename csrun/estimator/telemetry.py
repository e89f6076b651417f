"""What a run tells of itself to the admin shell of its system, while it holds the system."""

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from csrun.context import Progress, Telemetry
from csrun.context.job import TELEMETRY_FILE
from csrun.estimator.place import Target
from csrun.estimator.progress import Show

INTERVAL_S = 0.5  # of a file that a person watches


@contextmanager
def telemetry_published(show: Show, target: Target, arena_bytes: int) -> Iterator[Show]:
    """A function that shows progress and, in a job, leaves it in the job's folder, too."""
    if target.context is None or target.site is None:
        yield show
        return
    job_dir = target.context.job_dir
    meter = _Meter(target.system.name, arena_bytes)

    def show_and_publish(progress: Progress) -> None:
        show(progress)
        if (telemetry := meter.read(progress, time.time())) is not None:
            with suppress(OSError):  # a full disk is no reason to end a run
                telemetry.write(job_dir)

    try:
        yield show_and_publish
    finally:
        (job_dir / TELEMETRY_FILE).unlink(missing_ok=True)


class _Meter:
    """Progress now and then as telemetry, with the rate since the time before."""

    def __init__(self, system: str, arena_bytes: int) -> None:
        self._system = system
        self._arena_bytes = arena_bytes
        self._last: tuple[int, float] | None = None  # step, time

    def read(self, progress: Progress, now: float) -> Telemetry | None:
        rate = None
        if self._last is not None:
            step, then = self._last
            if now - then < INTERVAL_S:
                return None
            rate = (progress.done - step) / (now - then)
        self._last = (progress.done, now)
        return Telemetry(
            system=self._system,
            run=progress.what,
            step=progress.done,
            last_step=progress.total or None,
            step_rate_per_s=rate,
            arena_bytes=self._arena_bytes,
            detail=progress.text,
            updated_s=now,
        )
