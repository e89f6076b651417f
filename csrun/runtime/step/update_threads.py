"""Update threads of MemoryX: both halves of a large group concurrently.

The program defines the elements of a half, so the bits do not depend on the thread. If the second
thread has not started its half when the first one is done, because other work uses the CPUs, the
first thread computes that half, too.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from csrun.executable import StepState, UpdateProgram
from csrun.executable.bind import Halves


class UpdateThreads:
    """A thread next to the one that requests updates, if the task has a CPU for it."""

    def __init__(self, processors: int) -> None:
        self._executor = ThreadPoolExecutor(1, "update") if processors > 1 else None

    def over(self, program: UpdateProgram) -> UpdateProgram:
        """Return the same program with concurrent halves."""
        if self._executor is None:
            return program
        whole = enumerate(program.update)
        halves = program.halves
        return replace(
            program,
            update=[self._both(halves[g]) if g in halves else update for g, update in whole],
        )

    def close(self) -> None:
        """Stop the thread."""
        if self._executor is not None:
            self._executor.shutdown()

    def _both(self, halves: Halves) -> Callable[[StepState], None]:
        front, back = halves
        executor = self._executor
        assert executor is not None

        def update(step: StepState) -> None:
            done = executor.submit(_quiet, back, step)
            front(step)
            # It has not started, because other work uses the CPU: do not wait for it.
            if done.cancel():
                back(step)
            else:
                done.result()

        return update


@np.errstate(all="ignore")  # thread-local
def _quiet(update: Callable[[StepState], None], step: StepState) -> None:
    update(step)
