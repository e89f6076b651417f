"""Metrics of the host, on NumPy arrays: each a total and a count, so that batches add up."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from csrun.errors import UsageError
from csrun.mode import PADDING_LABEL


@dataclass(frozen=True)
class Mean:
    """A mean kept as total and count."""

    total: float
    count: int

    def __add__(self, other: "Mean") -> "Mean":
        """The mean over both parts."""
        return Mean(self.total + other.total, self.count + other.count)

    @property
    def value(self) -> float:
        """Total over count, NaN when nothing was counted."""
        return self.total / self.count if self.count else float("nan")


def accuracy(labels: npt.ArrayLike, predictions: npt.ArrayLike) -> Mean:
    """The share of rows whose prediction is its label; padding rows do not count.

    Shapes: labels [B], predictions [B]
    Raises: UsageError when the shapes differ
    """
    wanted, found = np.asarray(labels), np.asarray(predictions)
    if wanted.shape != found.shape:
        raise UsageError(
            f"accuracy: labels and predictions must have one shape, "
            f"got {list(wanted.shape)} and {list(found.shape)}"
        )
    valid = wanted != PADDING_LABEL
    return Mean(float(np.sum(valid & (wanted == found))), int(np.sum(valid)))
