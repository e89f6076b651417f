"""Softmax cross entropy over many classes: a few rows at a time, the softmax never whole.

What forward keeps of each row is the logarithm of its sum; backward takes the exponentials again.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def row_losses(
    logits: Array,
    labels: Array,
    losses: Array,
    sums: Array,
    tile: Array,
    numbers: Array,
    places: Array,
    smoothing: float,
) -> None:
    """losses = sums - logits[label], and sums = log(sum(exp(logits))), of each row.

    Of a label that is no class the loss is that of the nearest one. `smoothing` is the share of the
    label that the mean of the row has. numbers: those of the rows. places: scratch.

    Shapes: logits [N, C], labels, losses, sums, numbers, places [N], tile [R, C]
    """
    for at in range(0, len(logits), len(tile)):
        rows = slice(at, min(at + len(tile), len(logits)))
        shifted, tops = tile[: rows.stop - at], losses[rows]
        np.maximum.reduce(logits[rows], axis=1, out=tops)
        np.subtract(logits[rows], tops[:, None], out=shifted)
        np.exp(shifted, out=shifted)
        np.add.reduce(shifted, axis=1, out=sums[rows])
        np.log(sums[rows], out=sums[rows])
        np.add(sums[rows], tops, out=sums[rows])
    np.clip(labels, 0, logits.shape[1] - 1, out=places)
    picked = logits[numbers, places]
    if smoothing:
        np.multiply(picked, 1 - smoothing, out=picked)
        np.mean(logits, axis=1, out=losses)
        np.multiply(losses, smoothing, out=losses)
        np.add(picked, losses, out=picked)
    np.subtract(sums, picked, out=losses)


def row_gradients(
    logits: Array,
    labels: Array,
    sums: Array,
    ignored: Array,
    scale: Any,
    gradient: Array,
    numbers: Array,
    places: Array,
    tile: int,
    smoothing: float,
) -> None:
    """gradient = (exp(logits - sums) - one_hot(labels)) * scale, zero in rows that do not count.

    numbers: those of the rows. places: scratch. tile: how many rows at a time. smoothing: the share
    of the label that all classes have.

    Shapes: logits, gradient [N, C], labels, sums, ignored, numbers, places [N], scale []
    """
    columns = logits.shape[1]
    np.clip(labels, 0, columns - 1, out=places)
    for at in range(0, len(logits), tile):
        rows = slice(at, at + tile)
        own, classes = gradient[rows], labels[rows]
        np.subtract(logits[rows], sums[rows, None], out=own)
        np.exp(own, out=own)
        known = classes == places[rows]
        if smoothing:
            np.subtract(own, smoothing / columns, out=own)
            known = known * gradient.dtype.type(1 - smoothing)
        own[numbers[: len(own)], places[rows]] -= known
        np.multiply(own, scale, out=own)
    if ignored.any():
        gradient[ignored] = 0


def label_gradients(
    labels: Array,
    ignored: Array,
    scale: Any,
    gradient: Array,
    numbers: Array,
    places: Array,
    smoothing: float,
) -> None:
    """gradient = -scale at each label, and `smoothing` of it spread over the row.

    numbers: those of the rows. places: scratch.

    Shapes: labels, ignored, numbers, places [N], scale [], gradient [N, C]
    """
    columns = gradient.shape[1]
    gradient[...] = -smoothing / columns * scale
    np.clip(labels, 0, columns - 1, out=places)
    gradient[numbers, places] -= (1 - smoothing) * scale
    gradient[ignored] = 0
