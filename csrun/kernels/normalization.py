"""Layer norm and RMS norm over preallocated arrays, a tile of rows at a time.

Sums along rows and over rows are products with ones, or with the weight, because BLAS is faster
than NumPy's reductions.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


class LayerNormResults(NamedTuple):
    """Results of a layer norm, constants and scratch.

    Shapes: out [N, D], mean, rstd [N], ones [D], tile [R, D]
    """

    out: Array
    mean: Array
    rstd: Array
    ones: Array
    tile: Array


class LayerNormGradients(NamedTuple):
    """Gradients of a layer norm's operands, constants and scratch.

    Shapes: x [N, D], weight, bias, part [D], ones [R], tiles [R, D], sums [R]
    """

    x: Array
    weight: Array
    bias: Array
    ones: Array
    tiles: tuple[Array, Array]
    sums: tuple[Array, Array]
    part: Array


class RmsNormResults(NamedTuple):
    """Results of an RMS norm, and scratch.

    Shapes: out [N, D], rrms [N], tile [R, D]
    """

    out: Array
    rrms: Array
    tile: Array


class RmsNormGradients(NamedTuple):
    """Gradients of an RMS norm's operands, and scratch.

    Shapes: x [N, D], weight, part [D], tiles [R, D], sums [R]
    """

    x: Array
    weight: Array
    tiles: tuple[Array, Array]
    sums: Array
    part: Array


def layer_norm(x: Array, weight: Array, bias: Array, results: LayerNormResults, eps: float) -> None:
    """Layer norm [N, D] -> [N, D]: (x - mean) rstd weight + bias, and each row's mean and rstd.

    Shapes: x [N, D], weight, bias [D]
    """
    out, mean, rstd, ones, tile = results
    for at in range(0, len(x), len(tile)):
        rows = slice(at, min(at + len(tile), len(x)))
        normal, average, scale = tile[: rows.stop - at], mean[rows], rstd[rows]
        np.matmul(x[rows], ones, out=average)
        np.divide(average, len(ones), out=average)
        np.subtract(x[rows], average[:, None], out=normal)
        _inverse_root(normal, scale, eps)
        np.multiply(normal, scale[:, None], out=normal)
        np.multiply(normal, weight, out=normal)
        np.add(normal, bias, out=out[rows])


def rms_norm(x: Array, weight: Array, results: RmsNormResults, eps: float) -> None:
    """RMS norm [N, D] -> [N, D]: x rrms weight, and 1 / root mean square of each row.

    Shapes: x [N, D], weight [D]
    """
    out, rrms, tile = results
    for at in range(0, len(x), len(tile)):
        rows = slice(at, min(at + len(tile), len(x)))
        normal, scale = tile[: rows.stop - at], rrms[rows]
        _inverse_root(x[rows], scale, eps)
        np.multiply(x[rows], scale[:, None], out=normal)
        np.multiply(normal, weight, out=out[rows])


def _inverse_root(x: Array, out: Array, eps: float) -> None:
    """Inverse root [N, D] -> [N]: 1 / sqrt(mean of x x + eps) of each row."""
    np.vecdot(x, x, out=out)
    np.divide(out, x.shape[1], out=out)
    np.add(out, eps, out=out)
    np.sqrt(out, out=out)
    np.divide(1, out, out=out)


def layer_norm_backward(
    grad: Array, x: Array, mean: Array, rstd: Array, weight: Array, gradients: LayerNormGradients
) -> None:
    """Gradients of a layer norm, [N, D] -> [N, D], [D], [D].

    Shapes: grad, x [N, D], mean, rstd [N], weight [D]
    """
    x_gradient, weight_gradient, bias_gradient, ones, tiles, sums, part = gradients
    weight_gradient[...] = 0
    bias_gradient[...] = 0
    for at in range(0, len(x), len(ones)):
        rows = slice(at, min(at + len(ones), len(x)))
        count = rows.stop - at
        centred, out = tiles[0][:count], x_gradient[rows]
        np.subtract(x[rows], mean[rows, None], out=centred)
        part_of_weight = np.matmul(grad[rows], weight, out=sums[1][:count])
        np.divide(part_of_weight, x.shape[1], out=part_of_weight)
        _add_up(ones[:count], grad[rows], bias_gradient, part)
        product, of_row = tiles[1][:count], sums[0][:count]
        np.multiply(grad[rows], centred, out=product)
        np.matmul(product, weight, out=of_row)
        _add_up(rstd[rows], product, weight_gradient, part)
        np.divide(of_row, len(weight), out=of_row)
        np.multiply(of_row, rstd[rows], out=of_row)
        np.multiply(of_row, rstd[rows], out=of_row)
        np.multiply(centred, of_row[:, None], out=centred)
        np.add(centred, part_of_weight[:, None], out=centred)
        np.multiply(grad[rows], weight, out=product)
        np.subtract(product, centred, out=product)
        np.multiply(product, rstd[rows, None], out=out)


def rms_norm_backward(
    grad: Array, x: Array, rrms: Array, weight: Array, gradients: RmsNormGradients
) -> None:
    """Gradients of an RMS norm, [N, D] -> [N, D], [D].

    Shapes: grad, x [N, D], rrms [N], weight [D]
    """
    x_gradient, weight_gradient, tiles, sums, part = gradients
    weight_gradient[...] = 0
    for at in range(0, len(x), len(tiles[0])):
        rows = slice(at, min(at + len(tiles[0]), len(x)))
        count = rows.stop - at
        product, out = tiles[1][:count], x_gradient[rows]
        np.copyto(tiles[0][:count], x[rows])
        _back(grad[rows], tiles[0][:count], rrms[rows], weight, out, product, sums[:count])
        _add_up(rrms[rows], product, weight_gradient, part)
        np.multiply(out, rrms[rows, None], out=out)


def _back(
    grad: Array, x: Array, scale: Array, weight: Array, out: Array, product: Array, sums: Array
) -> None:
    """out = grad weight - x scale² mean(grad weight x); product = grad x.

    The normalized values are x scale. `x` and `sums` are overwritten.
    """
    np.multiply(grad, x, out=product)
    np.matmul(product, weight, out=sums)
    np.divide(sums, len(weight), out=sums)
    np.multiply(sums, scale, out=sums)
    np.multiply(sums, scale, out=sums)
    np.multiply(x, sums[:, None], out=x)
    np.multiply(grad, weight, out=out)
    np.subtract(out, x, out=out)


def _add_up(scale: Array, rows: Array, total: Array, part: Array) -> None:
    """total += sum of the rows, each times its scale."""
    np.matmul(scale, rows, out=part)
    np.add(total, part, out=total)
