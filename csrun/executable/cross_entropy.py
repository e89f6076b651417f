"""Softmax cross entropy over many classes: a few rows at a time, the softmax never whole.

What forward keeps of each row is the logarithm of its sum; backward takes the exponentials again.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def row_losses(logits: Array, labels: Array, losses: Array, sums: Array, tile: Array) -> None:
    """losses = sums - logits[label], and sums = log(sum(exp(logits))), of each row.

    Of a label that is no class the loss is that of the nearest one.

    Shapes: logits [N, C], labels, losses, sums [N], tile [R, C]
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
    picked = logits[np.arange(len(labels)), np.clip(labels, 0, logits.shape[1] - 1)]
    np.subtract(sums, picked, out=losses)


def row_gradients(
    logits: Array,
    labels: Array,
    sums: Array,
    ignored: Array,
    scale: Any,
    gradient: Array,
    tile: int,
) -> None:
    """gradient = (exp(logits - sums) - one_hot(labels)) * scale, zero in rows that do not count.

    tile: how many rows at a time.

    Shapes: logits, gradient [N, C], labels, sums, ignored [N], scale []
    """
    columns = logits.shape[1]
    for at in range(0, len(logits), tile):
        rows = slice(at, at + tile)
        own, classes = gradient[rows], labels[rows]
        np.subtract(logits[rows], sums[rows, None], out=own)
        np.exp(own, out=own)
        known = (classes >= 0) & (classes < columns)
        own[np.arange(len(own)), np.clip(classes, 0, columns - 1)] -= known
        np.multiply(own, scale, out=own)
    if ignored.any():
        gradient[ignored] = 0
