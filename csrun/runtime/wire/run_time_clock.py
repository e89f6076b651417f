"""A clock that stands still while its process does, as one does that is stopped while it waits.

How long a process has waited says nothing of whom it waited for if it did not run meanwhile: it
would not have seen that the wait was over. So waits are cut in slices, and a slice that takes much
longer than it was to is the process's own time.
"""

import os
import select
from time import perf_counter

SLICE_S = 0.05  # much shorter than a stop worth noticing, much longer than a poll


class _Lost:
    seconds = 0.0


def awake_s() -> float:
    """Seconds, as perf_counter's, but for those in which this process waited and did not run."""
    return perf_counter() - _Lost.seconds


def poll_briefly(poll: select.poll, most_s: float) -> list[tuple[int, int]]:
    """Return what is ready, busy polling; others may take the processor."""
    began = now = perf_counter()
    while not (ready := poll.poll(0)) and now - began < most_s:
        # The awaited process may need this very processor.
        os.sched_yield()
        now = perf_counter()
    if (taken := perf_counter() - began) > most_s + 2 * SLICE_S:
        _Lost.seconds += taken - most_s
    return ready


def poll_awake(poll: select.poll, timeout_s: float) -> list[tuple[int, int]]:
    """Return what is ready within the timeout, or within a slice if that is less."""
    began, most_s = perf_counter(), min(timeout_s, SLICE_S)
    ready = poll.poll(most_s * 1000)
    taken = perf_counter() - began
    if taken > 2 * SLICE_S:
        _Lost.seconds += taken - most_s
    return ready
