"""Gradient of a loss's label term."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def label_gradients(
    labels: Array,
    ignored: Array,
    scale: Any,
    gradient: Array,
    numbers: Array,
    places: Array,
    smoothing: float,
) -> None:
    """Label gradient [N] -> [N, C]: -scale at each label, `smoothing` of it spread over the row.

    numbers: row indices.
    places: scratch.

    Shapes: labels, ignored, numbers, places [N], scale [], gradient [N, C]
    """
    columns = gradient.shape[1]
    gradient[...] = -smoothing / columns * scale
    np.clip(labels, 0, columns - 1, out=places)
    gradient[numbers, places] -= (1 - smoothing) * scale
    gradient[ignored] = 0
