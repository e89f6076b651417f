"""Clock that stops while its process is stopped during a wait.

The duration of a wait says nothing about the awaited process if the waiting process was stopped
meanwhile. Waits are therefore split into slices; time by which a slice exceeds its timeout by far
is attributed to this process.
"""

import os
import select
from time import perf_counter

SLICE_S = 0.05  # much shorter than a noticeable stop, much longer than a poll


class _Lost:
    seconds = 0.0


def awake_s() -> float:
    """Return seconds as perf_counter, without those in which this process waited and was
    stopped.
    """
    return perf_counter() - _Lost.seconds


def poll_briefly(poll: select.poll, most_s: float) -> list[tuple[int, int]]:
    """Return the ready descriptors by busy polling, yielding the CPU."""
    began = now = perf_counter()
    while not (ready := poll.poll(0)) and now - began < most_s:
        # The awaited process may need this CPU.
        os.sched_yield()
        now = perf_counter()
    if (taken := perf_counter() - began) > most_s + 2 * SLICE_S:
        _Lost.seconds += taken - most_s
    return ready


def poll_awake(poll: select.poll, timeout_s: float) -> list[tuple[int, int]]:
    """Return the descriptors that are ready within the timeout, or within a slice if that is
    shorter.
    """
    began, most_s = perf_counter(), min(timeout_s, SLICE_S)
    ready = poll.poll(most_s * 1000)
    taken = perf_counter() - began
    if taken > 2 * SLICE_S:
        _Lost.seconds += taken - most_s
    return ready
