"""Threads of a task that share calls of a function, and sums of large arrays by them.

For functions that mostly run without the GIL: machine code, and NumPy on large arrays.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from csrun.executable.arrays import Array

#: Elements of a sum that one thread computes at a time. Measured: with smaller pieces the threads
#: wait for the GIL between two of them, and a sum of fewer elements ends before a thread
#: wakes up.
SUMMED_AT_A_TIME, LEAST_SHARED_SUM = 1 << 18, 1 << 20


class CallThreads:
    """Threads that share calls of a function; the calling thread is one of them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._executor = ThreadPoolExecutor(count - 1, "calls") if count > 1 else None

    def run(self, function: Callable[[int], None], numbers: range) -> None:
        """Call the function with each number, and wait for all calls."""
        left = iter(numbers)  # a thread takes a number without a lock
        if self._executor is None or len(numbers) < 2:
            _take(function, left)
            return
        helpers = min(self.count, len(numbers)) - 1
        started = [self._executor.submit(_take, function, left) for _ in range(helpers)]
        try:
            _take(function, left)
        finally:
            # One that has not started, because other work uses its CPU, has nothing left to do.
            errors = [each.exception() for each in started if not each.cancel()]
        for error in errors:
            if error is not None:
                raise error

    def close(self) -> None:
        """Stop the threads."""
        if self._executor is not None:
            self._executor.shutdown()


@np.errstate(all="ignore")  # thread-local
def _take(function: Callable[[int], None], left: Iterator[int]) -> None:
    for number in left:
        function(number)


def add_in_place(total: Array, part: Array, threads: CallThreads) -> None:
    """Add an array to another one; the bits do not depend on the threads.

    Shapes: both [n]
    """
    if len(total) < LEAST_SHARED_SUM:
        np.add(total, part, out=total)
        return

    def add(start: int) -> None:
        piece = slice(start, start + SUMMED_AT_A_TIME)
        np.add(total[piece], part[piece], out=total[piece])

    threads.run(add, range(0, len(total), SUMMED_AT_A_TIME))
