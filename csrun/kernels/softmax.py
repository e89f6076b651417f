"""Softmax and log-softmax over preallocated arrays, a tile at a time.

All arrays are [N, C, I], with the reduction along the middle axis. If I is 1, sums are products
with ones, which are faster than NumPy's reductions.

The row maximum, whose subtraction prevents overflow, costs as much as everything else. The
exponentials of a tile are therefore computed without it, and recomputed with it if a sum is too
large or near zero.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

SHORT = 100  # columns from which a maximum along a row is faster than in the transpose
# accepted range of a sum: far from float32's smallest and largest, 1e-38 and 3e38
LEAST, MOST = 1e-20, 1e26


def softmax(x: Array, out: Array, tile: Array, numbers: Array, ones: Array) -> None:
    """Softmax [N, C, I] -> [N, C, I] over C: exp(x) / its sum.

    Shapes: x, out [N, C, I], tile [R, C, I], numbers [R, I], ones [C]
    """
    for rows, own, sums in _tiles(x, tile, numbers):
        values = out[rows]
        if not _powers(x[rows], values, sums, ones):
            _shifted(x[rows], own, values, sums)
            np.exp(values, out=values)
            _sum(values, sums, ones)
        np.divide(1, sums, out=sums)
        np.multiply(values, sums[:, None], out=values)


def log_softmax(x: Array, out: Array, tile: Array, numbers: Array, ones: Array) -> None:
    """Log-softmax [N, C, I] -> [N, C, I] over C: x - log(sum(exp(x))).

    Shapes: x, out [N, C, I], tile [R, C, I], numbers [R, I], ones [C]
    """
    for rows, own, sums in _tiles(x, tile, numbers):
        values = out[rows]
        if _powers(x[rows], own, sums, ones):
            rest = own[:, 0]
            _logarithm(sums, rest, values[:, 0])
            np.subtract(x[rows], sums[:, None], out=values)
            np.subtract(values, rest[:, None], out=values)
            continue
        _shifted(x[rows], own, values, sums)
        np.exp(values, out=own)
        _sum(own, sums, ones)
        np.log(sums, out=sums)
        np.subtract(values, sums[:, None], out=values)


def _powers(x: Array, out: Array, sums: Array, ones: Array) -> bool:
    """out = exp(x), and its sums; returns whether the sums are in range, which NaN never is.

    No exponential exceeds its sum, so the individual ones need no check.
    """
    with np.errstate(over="ignore"):
        np.exp(x, out=out)
        _sum(out, sums, ones)
    return bool(sums.min() >= LEAST and sums.max() <= MOST)


def _logarithm(x: Array, rest: Array, power: Array) -> None:
    """x = log(x), rounded, and the rounding error: as exact as logarithms of numbers near 1."""
    np.copyto(rest, x)
    np.log(x, out=x)
    np.exp(x, out=power)
    np.divide(rest, power, out=rest)
    np.log(rest, out=rest)


def softmax_backward(
    grad: Array, y: Array, out: Array, tile: Array, numbers: Array, ones: Array
) -> None:
    """Softmax gradient [N, C, I] -> [N, C, I]: y (grad - sum(grad y)).

    Shapes: grad, y, out [N, C, I], tile [R, C, I], numbers [R, I], ones [C]
    """
    for rows, own, sums in _tiles(y, tile, numbers):
        if y.shape[2] == 1:
            np.vecdot(grad[rows][:, :, 0], y[rows][:, :, 0], out=sums[:, 0])
        else:
            np.multiply(grad[rows], y[rows], out=own)
            np.add.reduce(own, axis=1, out=sums)
        np.subtract(grad[rows], sums[:, None], out=own)
        np.multiply(own, y[rows], out=out[rows])


def log_softmax_backward(
    grad: Array, y: Array, out: Array, tile: Array, numbers: Array, ones: Array
) -> None:
    """Log-softmax gradient [N, C, I] -> [N, C, I]: grad - exp(y) sum(grad).

    Shapes: grad, y, out [N, C, I], tile [R, C, I], numbers [R, I], ones [C]
    """
    for rows, own, sums in _tiles(y, tile, numbers):
        _sum(grad[rows], sums, ones)
        np.exp(y[rows], out=own)
        np.multiply(own, sums[:, None], out=own)
        np.subtract(grad[rows], own, out=out[rows])


def _tiles(x: Array, tile: Array, numbers: Array) -> Iterator[tuple[slice, Array, Array]]:
    for at in range(0, len(x) if x.size else 0, len(tile)):
        rows = slice(at, min(at + len(tile), len(x)))
        yield rows, tile[: rows.stop - at], numbers[: rows.stop - at]


def _shifted(x: Array, tile: Array, out: Array, tops: Array) -> None:
    """out = x minus the maximum along the axis; the tile may be overwritten."""
    count, size, inner = x.shape
    if inner == 1 and size < SHORT:
        transposed = tile.reshape(-1)[: count * size].reshape(size, count)
        np.copyto(transposed, x[:, :, 0].T)
        np.maximum.reduce(transposed, axis=0, out=tops[:, 0])
    else:
        np.maximum.reduce(x, axis=1, out=tops)
    np.subtract(x, tops[:, None], out=out)


def _sum(x: Array, sums: Array, ones: Array) -> None:
    if x.shape[2] == 1:
        np.matmul(x[:, :, 0], ones, out=sums[:, 0])
    else:
        np.add.reduce(x, axis=1, out=sums)
