"""Threads that share calls: each index once, errors of any thread, sums for any thread count."""

import threading
from contextlib import closing

import numpy as np
import pytest

from csrun.runtime.step import call_threads
from csrun.runtime.step.call_threads import CallThreads, add_in_place

THREADS = [1, 2, 3]


@pytest.mark.parametrize("count", THREADS)
@pytest.mark.parametrize("numbers", [range(0), range(1), range(3), range(2, 50, 3)])
def test_each_number_is_called_once(count, numbers):
    called = []
    with closing(CallThreads(count)) as threads:
        threads.run(called.append, numbers)
    assert sorted(called) == list(numbers)


@pytest.mark.parametrize("count", [2, 3])
def test_all_threads_take_part(count):
    barrier, names = threading.Barrier(count, timeout=60), set()

    def call(number):
        barrier.wait()
        names.add(threading.current_thread().name)

    with closing(CallThreads(count)) as threads:
        threads.run(call, range(count))
    assert len(names) == count


@pytest.mark.parametrize("count", THREADS)
@pytest.mark.parametrize("bad", [0, 1, 7])
def test_an_error_is_raised_after_all_calls_have_ended(count, bad):
    running = []

    def call(number):
        running.append(number)
        if number == bad:
            raise ValueError(f"number {number}")
        running.append(-number)

    with closing(CallThreads(count)) as threads:
        with pytest.raises(ValueError, match=f"number {bad}"):
            threads.run(call, range(8))
        ended = {-n for n in running if n < 0}
        assert {n for n in running if n > 0} - ended <= {bad}
        threads.run(running.append, range(100, 103))
    assert sorted(running)[-3:] == [100, 101, 102]


@pytest.mark.parametrize("count", THREADS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_sum_is_that_of_its_elements(monkeypatch, count, dtype):
    monkeypatch.setattr(call_threads, "LEAST_SHARED_SUM", 100)
    monkeypatch.setattr(call_threads, "SUMMED_AT_A_TIME", 64)
    random = np.random.default_rng(4)
    for size in (0, 1, 99, 100, 1000):
        total, part = random.standard_normal((2, size)).astype(dtype)
        expected = [np.dtype(dtype).type(a + b) for a, b in zip(total, part, strict=True)]
        with closing(CallThreads(count)) as threads:
            add_in_place(total, part, threads)
        assert total.tolist() == expected
