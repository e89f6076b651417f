"""The gate that the tasks of a node go through together."""

import os

from csrun.launch.process.gate import Gate


def test_a_gate_opens_once_for_tasks_that_were_counted_twice():
    """One of two died before it reported in, and both have started again."""
    gate = Gate(2)
    assert not _reports_in(gate)
    assert _reports_in(gate)
    reused = os.open(os.devnull, os.O_RDONLY)  # may have the number that the gate has closed
    assert not _reports_in(gate)
    os.close(reused)
    gate.leave()


def _reports_in(gate):
    os.eventfd_write(gate.fileno(), 1)
    return gate.take_arrivals()
