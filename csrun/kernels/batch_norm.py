"""Batch normalization over preallocated arrays, a tile of rows at a time.

Sums over places are products with ones: BLAS adds faster than NumPy's reductions.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class BatchNormResults(NamedTuple):
    """Results of a batch norm, constants, scratch and options.

    running_mean, running_variance: those of the next step

    Shapes: out [N, C, P], ones [P], sums [T, C], all other arrays [C]
    """

    out: Array
    mean: Array
    rstd: Array
    running_mean: Array
    running_variance: Array
    ones: Array
    sums: Array
    scratch: tuple[Array, Array]
    momentum: float
    eps: float


class BatchNormGradients(NamedTuple):
    """Gradients of a batch norm's operands, constants and scratch.

    Shapes: x [N, C, P], ones [P], sums [T, C], all others [C]
    """

    x: Array
    weight: Array
    bias: Array
    ones: Array
    sums: Array
    scratch: tuple[Array, Array, Array]


def batch_norm(
    x: Array,
    weight: Array,
    bias: Array,
    running: tuple[Array, Array],
    results: BatchNormResults,
    end: int,
    share: float,
) -> None:
    """Batch norm [N, C, P] -> [N, C, P]: (x - mean) rstd weight + bias, over the rows before `end`.

    running: mean and unbiased variance over the batches. The next values are multiplied by `share`,
        the share of the batch's samples in these rows; 0 without valid rows.

    Shapes: x [N, C, P], all others [C]
    """
    out, mean, rstd, next_mean, next_variance, ones, sums, (variance, part), *_ = results
    counted, centred = x[:end], out[:end]
    count = max(len(counted) * len(ones), 1)
    mean[...] = 0
    variance[...] = 0
    for rows in _tiles(end, len(sums)):
        _add_up(np.matmul(counted[rows], ones, out=_of(sums, counted[rows])), mean, part)
    np.divide(mean, count, out=mean)
    for rows in _tiles(end, len(sums)):
        own = np.subtract(counted[rows], mean[:, None], out=centred[rows])
        _add_up(_products(own, own, _of(sums, own)), variance, part)
    np.divide(variance, count, out=variance)
    np.add(variance, results.eps, out=rstd)
    np.sqrt(rstd, out=rstd)
    np.divide(1, rstd, out=rstd)
    np.multiply(variance, count / max(count - 1, 1), out=variance)
    batch, following = (mean, variance), (next_mean, next_variance)
    for old, new, out_value in zip(running, batch, following, strict=True):
        _go_on(old, new, out_value, results.momentum, share, part)
    np.multiply(rstd, weight, out=part)
    np.subtract(x[end:], mean[:, None], out=out[end:])
    for rows in _tiles(len(out), len(sums)):
        np.multiply(out[rows], part[:, None], out=out[rows])
        np.add(out[rows], bias[:, None], out=out[rows])


def batch_norm_backward(
    grad: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array,
    gradients: BatchNormGradients,
    end: int,
) -> None:
    """Gradients of a batch norm [N, C, P], [C], [C]; rows from `end` on are padding with gradient
    0.

    Shapes: grad, x [N, C, P], all others [C]
    """
    x_gradient, weight_gradient, bias_gradient, ones, sums, (first, part, scale) = gradients
    count = max(end * len(ones), 1)
    weight_gradient[...] = 0
    bias_gradient[...] = 0
    for rows in _tiles(end, len(sums)):
        slope, centred = grad[rows], x_gradient[rows]
        np.subtract(x[rows], mean[:, None], out=centred)
        own = _of(sums, slope)
        _add_up(np.matmul(slope, ones, out=own), bias_gradient, part)
        _add_up(_products(slope, centred, own), weight_gradient, part)
    np.multiply(weight_gradient, rstd, out=weight_gradient)
    np.divide(bias_gradient, count, out=first)  # the term subtracted from a row's gradient
    np.multiply(weight_gradient, rstd, out=part)  # and the factor of the centred values
    np.divide(part, count, out=part)
    np.multiply(rstd, weight, out=scale)
    for rows in _tiles(end, len(sums)):
        own = x_gradient[rows]
        np.multiply(own, part[:, None], out=own)
        np.add(own, first[:, None], out=own)
        np.subtract(grad[rows], own, out=own)
        np.multiply(own, scale[:, None], out=own)
    x_gradient[end:] = 0


def _tiles(end: int, rows: int) -> list[slice]:
    return [slice(at, min(at + rows, end)) for at in range(0, end, rows)]


def _of(sums: Array, rows: Array) -> Array:
    return sums[: len(rows)]


def _products(a: Array, b: Array, out: Array) -> Array:
    """Sums over positions [T, C, P] -> [T, C] of a b; a single position needs no sum.

    Shapes: a, b [T, C, P], out [T, C]
    """
    if a.shape[2] == 1:
        return np.multiply(a[..., 0], b[..., 0], out=out)
    return np.vecdot(a, b, out=out)


def _add_up(rows: Array, total: Array, part: Array) -> None:
    """Accumulate column sums [T, C] -> [C]: total += the sum of the rows.

    Shapes: rows [T, C], total, part [C]
    """
    np.add.reduce(rows, axis=0, out=part)
    np.add(total, part, out=total)


def _go_on(old: Array, new: Array, out: Array, momentum: float, share: float, part: Array) -> None:
    """out = share ((1 - momentum) old + momentum new)."""
    np.multiply(old, (1 - momentum) * share, out=out)
    np.multiply(new, momentum * share, out=part)
    np.add(out, part, out=out)
