"""What the streamers of a job deliver when somebody takes all they make, without a step."""

from time import perf_counter

from csrun.runtime.cluster import BATCHES_AHEAD
from csrun.runtime.source import RingSource


def drain(source: RingSource, seconds: float) -> tuple[int, float]:
    """Take batches for so long, or until the data ends: the samples, and the time that it took.

    What lies ready in the rings was made before: it is taken first, and not counted.
    """
    started = perf_counter()
    for _ in range(BATCHES_AHEAD):
        if perf_counter() - started > seconds or not _take(source):
            break
    samples, started = 0, perf_counter()
    while (spent := perf_counter() - started) < seconds:
        if not (rows := _take(source)):
            break
        samples += rows
    return samples, spent


def _take(source: RingSource) -> int:
    taken = source.take()
    if taken is None:
        return 0
    source.release()
    return taken[1]
