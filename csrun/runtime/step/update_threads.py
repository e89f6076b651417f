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
        self._beside = ThreadPoolExecutor(1, "update") if processors > 1 else None

    def over(self, program: UpdateProgram) -> UpdateProgram:
        """Return the same program with concurrent halves."""
        if self._beside is None:
            return program
        whole = enumerate(program.update)
        halves = program.halves
        return replace(
            program,
            update=[self._both(halves[g]) if g in halves else update for g, update in whole],
        )

    def close(self) -> None:
        """Stop the thread."""
        if self._beside is not None:
            self._beside.shutdown()

    def _both(self, halves: Halves) -> Callable[[StepState], None]:
        front, back = halves
        beside = self._beside
        assert beside is not None

        def update(step: StepState) -> None:
            done = beside.submit(_quiet, back, step)
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
