"""Numbers that come with each step, such as a learning rate that nobody knows before.

And the norm of the step's gradients, which the updates write where they clip them.
"""

from collections.abc import Sequence

import numpy as np

from csrun.executable import MOST_STEPS
from csrun.executable.arrays import Array


class StepNumbers:
    """The numbers of the steps as the chief writes them where the updates read them.

    Nobody reads them between two orders: an order is over when its updates are made.
    count: of the numbers. Shapes: store float64[MOST_STEPS, count + 1, or more], wherever it is;
    None when no number is read
    """

    def __init__(self, store: Array | None, count: int) -> None:
        self._store, self._count = store, count
        self._rows = np.zeros((MOST_STEPS, 1) if store is None else store.shape)

    def put(self, first: int, numbers: Sequence[Sequence[float]]) -> None:
        """The numbers of the steps from `first` on, of MOST_STEPS at most."""
        if self._store is None:
            return
        steps = np.arange(first, first + len(numbers)) % MOST_STEPS
        read = self._count  # what comes after is the updates' own, or begins anew
        self._rows[steps, :read] = np.asarray(numbers)[:, :read]
        self._store[...] = self._rows

    def norms(self, first: int, count: int) -> list[float]:
        """Norms of the gradients of steps of the last order; zeros where they are not clipped."""
        if self._store is None:
            return [0.0] * count
        steps = np.arange(first, first + count) % MOST_STEPS
        found: list[float] = np.asarray(self._store)[steps, self._count].tolist()
        return found

    def of(self, step: int, index: int) -> float:
        """Number `index` of one of the last MOST_STEPS steps."""
        return float(self._rows[step % MOST_STEPS, index])
