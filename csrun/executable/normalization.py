"""Layer norm and RMS norm over preallocated arrays, a tile of rows at a time.

Sums along rows and over them are products with ones, or with the weight: BLAS adds faster than
NumPy's reductions.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def layer_norm(
    x: Array,
    weight: Array,
    bias: Array,
    out: Array,
    mean: Array,
    rstd: Array,
    ones: Array,
    tile: Array,
    eps: float,
) -> None:
    """out = (x - mean) rstd weight + bias, and each row's mean and 1 / standard deviation.

    Shapes: x, out [N, D], weight, bias, ones [D], mean, rstd [N], tile [R, D]
    """
    for at in range(0, len(x), len(tile)):
        rows = slice(at, min(at + len(tile), len(x)))
        normal, average, scale = tile[: rows.stop - at], mean[rows], rstd[rows]
        np.matmul(x[rows], ones, out=average)
        np.divide(average, len(ones), out=average)
        np.subtract(x[rows], average[:, None], out=normal)
        _inverse_root(normal, scale, eps)
        np.multiply(normal, scale[:, None], out=normal)
        np.multiply(normal, weight, out=out[rows])
        np.add(out[rows], bias, out=out[rows])


def rms_norm(x: Array, weight: Array, out: Array, rrms: Array, tile: Array, eps: float) -> None:
    """out = x rrms weight, and 1 / root mean square of each row.

    Shapes: x, out [N, D], weight [D], rrms [N], tile [R, D]
    """
    for at in range(0, len(x), len(tile)):
        rows = slice(at, min(at + len(tile), len(x)))
        normal, scale = tile[: rows.stop - at], rrms[rows]
        _inverse_root(x[rows], scale, eps)
        np.multiply(x[rows], scale[:, None], out=normal)
        np.multiply(normal, weight, out=out[rows])


def _inverse_root(x: Array, out: Array, eps: float) -> None:
    """out = 1 / sqrt(mean of x x + eps) of each row."""
    np.einsum("nd,nd->n", x, x, out=out)
    np.divide(out, x.shape[1], out=out)
    np.add(out, eps, out=out)
    np.sqrt(out, out=out)
    np.divide(1, out, out=out)


def layer_norm_backward(
    grad: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    weight: Array,
    x_gradient: Array,
    weight_gradient: Array,
    bias_gradient: Array,
    ones: Array,
    tiles: tuple[Array, Array],
    sums: tuple[Array, Array],
    part: Array,
) -> None:
    """The gradients of a layer norm's operands.

    Shapes: grad, x, x_gradient [N, D], mean, rstd [N], weight, weight_gradient, bias_gradient, part
    [D], ones [R], tiles [R, D], sums [R]
    """
    weight_gradient[...] = 0
    bias_gradient[...] = 0
    for at in range(0, len(x), len(ones)):
        rows = slice(at, min(at + len(ones), len(x)))
        count = rows.stop - at
        normal, out = tiles[0][:count], x_gradient[rows]
        np.subtract(x[rows], mean[rows, None], out=normal)
        np.multiply(normal, rstd[rows, None], out=normal)
        _back(grad[rows], normal, rstd[rows], weight, out, tiles[1][:count], sums[0][:count])
        _add_up(ones[:count], tiles[1][:count], weight_gradient, part)
        _add_up(ones[:count], grad[rows], bias_gradient, part)
        average = np.matmul(grad[rows], weight, out=sums[1][:count])
        np.multiply(average, rstd[rows], out=average)
        np.divide(average, x.shape[1], out=average)
        np.subtract(out, average[:, None], out=out)


def rms_norm_backward(
    grad: Array,
    x: Array,
    rrms: Array,
    weight: Array,
    x_gradient: Array,
    weight_gradient: Array,
    ones: Array,
    tiles: tuple[Array, Array],
    sums: Array,
    part: Array,
) -> None:
    """The gradients of an RMS norm's operands.

    Shapes: grad, x, x_gradient [N, D], rrms [N], weight, weight_gradient, part [D], ones [R], tiles
    [R, D], sums [R]
    """
    weight_gradient[...] = 0
    for at in range(0, len(x), len(ones)):
        rows = slice(at, min(at + len(ones), len(x)))
        count = rows.stop - at
        normal = tiles[0][:count]
        np.multiply(x[rows], rrms[rows, None], out=normal)
        _back(
            grad[rows], normal, rrms[rows], weight, x_gradient[rows], tiles[1][:count], sums[:count]
        )
        _add_up(ones[:count], tiles[1][:count], weight_gradient, part)


def _back(
    grad: Array, normal: Array, scale: Array, weight: Array, out: Array, product: Array, sums: Array
) -> None:
    """out = scale (grad weight - normal mean(grad weight normal)); product = grad normal.

    `normal` and `sums` are changed.
    """
    np.multiply(grad, normal, out=product)
    np.matmul(product, weight, out=sums)
    np.divide(sums, len(weight), out=sums)
    np.multiply(normal, sums[:, None], out=normal)
    np.multiply(grad, weight, out=out)
    np.subtract(out, normal, out=out)
    np.multiply(out, scale[:, None], out=out)


def _add_up(ones: Array, rows: Array, total: Array, part: Array) -> None:
    np.matmul(ones, rows, out=part)
    np.add(total, part, out=total)
