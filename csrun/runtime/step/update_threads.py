"""The threads of MemoryX that update: both halves of a large group at once.

Which elements a half has is the program's; so bits do not depend on who makes it. That is the
other thread if it has begun with its half when the first one is done, which it has not where other
work has the processors: then nobody waits for it.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np

from csrun.executable import StepState, UpdateProgram
from csrun.executable.bind import Halves


class UpdateThreads:
    """A thread next to the one that asks for updates, if the task has a processor for it."""

    def __init__(self, processors: int) -> None:
        self._beside = ThreadPoolExecutor(1, "update") if processors > 1 else None

    def over(self, program: UpdateProgram) -> UpdateProgram:
        """The same program, which runs two halves at once."""
        if self._beside is None:
            return program
        whole = enumerate(program.update)
        halves = program.halves
        return replace(
            program,
            update=[self._both(halves[g]) if g in halves else update for g, update in whole],
        )

    def close(self) -> None:
        """Let the thread end."""
        if self._beside is not None:
            self._beside.shutdown()

    def _both(self, halves: Halves) -> Callable[[StepState], None]:
        front, back = halves
        beside = self._beside
        assert beside is not None

        def update(step: StepState) -> None:
            done = beside.submit(_quiet, back, step)
            front(step)
            # It has not begun, as others have the processor: not waited for.
            if done.cancel():
                back(step)
            else:
                done.result()

        return update


@np.errstate(all="ignore")  # which each thread has for itself
def _quiet(update: Callable[[StepState], None], step: StepState) -> None:
    update(step)
