"""Metrics of the host, on NumPy arrays: each a total and a count, so that batches add up."""

import numpy as np
import numpy.typing as npt

from csrun.base.errors import UsageError
from csrun.base.mode import PADDING_LABEL
from csrun.runtime.step.results import Mean


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
