"""Numbers passed with each step, such as a learning rate that is not known in advance.

Also the norm of the step's gradients, which updates write if they clip.
"""

from collections.abc import Sequence

import numpy as np

from csrun.executable import MOST_STEPS
from csrun.executable.arrays import Array


class StepNumbers:
    """Numbers of the steps, written by the chief where the updates read them.

    They are not read between two orders, since all updates of an order are complete at its end.
    count: number of numbers per step. Shapes: store float64[MOST_STEPS, count + 1, or more], for
        any location of the store; None if no number is read
    """

    def __init__(self, store: Array | None, count: int) -> None:
        self._store, self._count = store, count
        self._rows = np.zeros((MOST_STEPS, 1) if store is None else store.shape)

    def put(self, first: int, numbers: Sequence[Sequence[float]]) -> None:
        """Write the numbers of the steps from `first` on, MOST_STEPS at most."""
        if self._store is None:
            return
        steps = np.arange(first, first + len(numbers)) % MOST_STEPS
        read = self._count  # later columns are written by updates, or reset
        self._rows[steps, :read] = np.asarray(numbers)[:, :read]
        self._store[...] = self._rows

    def norms(self, first: int, count: int) -> list[float]:
        """Return the gradient norms of steps of the last order; zeros without clipping."""
        if self._store is None:
            return [0.0] * count
        steps = np.arange(first, first + count) % MOST_STEPS
        found: list[float] = np.asarray(self._store)[steps, self._count].tolist()
        return found

    def of(self, step: int, index: int) -> float:
        """Return number `index` of one of the last MOST_STEPS steps."""
        return float(self._rows[step % MOST_STEPS, index])
