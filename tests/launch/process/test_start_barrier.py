"""Barrier that the tasks of a node pass together at start."""

import os

from csrun.launch.process.start_barrier import StartBarrier


def test_a_gate_opens_once_for_tasks_that_were_counted_twice():
    """One of two tasks died before it reported, and both have started again."""
    start_barrier = StartBarrier(2)
    assert not _reports_in(start_barrier)
    assert _reports_in(start_barrier)
    reused = os.open(os.devnull, os.O_RDONLY)  # may have the number that the gate has closed
    assert not _reports_in(start_barrier)
    os.close(reused)
    start_barrier.leave()


def _reports_in(start_barrier):
    os.eventfd_write(start_barrier.fileno(), 1)
    return start_barrier.count_arrivals()
