"""Factorizations and functions of the matrices of the last two axes, by NumPy's LAPACK.

A matrix without a result gives NaN: one that is singular, or not positive definite.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def _each(function: Callable[[Array], tuple[Array, ...]], x: Array, *results: Array) -> None:
    """Write a function's results for all matrices, and one by one if it fails for some."""
    try:
        found = function(x)
    except np.linalg.LinAlgError:
        for place in np.ndindex(x.shape[:-2]):
            try:
                one = function(x[place])
            except np.linalg.LinAlgError:
                one = tuple(np.full(out.shape[len(place) :], np.nan) for out in results)
            for out, each in zip(results, one, strict=True):
                out[place] = each
        return
    for out, each in zip(results, found, strict=True):
        out[...] = each


def cholesky(x: Array, out: Array, info: Array) -> None:
    """Write L of x = L L^T. Shapes: x, out [..., N, N], info [...]"""
    _each(lambda a: (np.linalg.cholesky(a),), x, out)
    info[...] = np.isnan(out).any((-2, -1))


def inverse(x: Array, out: Array, info: Array) -> None:
    """Shapes: x, out [..., N, N], info [...]"""
    _each(lambda a: (np.linalg.inv(a),), x, out)
    info[...] = np.isnan(out).any((-2, -1))


def solve_triangular(a: Array, b: Array, out: Array, upper: bool, unitriangular: bool) -> None:
    """Solve a x = b for a triangle of a. Shapes: a [..., N, N], b, out [..., N, K]"""
    out[...] = _solved(a, b, upper, unitriangular)


def _solved(a: Array, b: Array, upper: bool, unitriangular: bool) -> Array:
    """Solve by halves, whose products are matrix products.

    Shapes: a [..., N, N], b [..., N, K] -> [..., N, K]
    """
    size = a.shape[-1]
    if size <= 8:
        return _solved_by_rows(a, b, upper, unitriangular)
    half = size // 2
    first, last = slice(0, half), slice(half, size)
    known, rest = (last, first) if upper else (first, last)
    found = _solved(a[..., known, known], b[..., known, :], upper, unitriangular)
    left = b[..., rest, :] - a[..., rest, known] @ found
    other = _solved(a[..., rest, rest], left, upper, unitriangular)
    return np.concatenate((other, found) if upper else (found, other), -2)


def _solved_by_rows(a: Array, b: Array, upper: bool, unitriangular: bool) -> Array:
    found, rows = np.empty_like(b), range(a.shape[-1])
    with np.errstate(divide="ignore", invalid="ignore"):
        for row in reversed(rows) if upper else rows:
            known = slice(row + 1, None) if upper else slice(0, row)
            rest = b[..., row, :] - (a[..., row, None, known] @ found[..., known, :])[..., 0, :]
            found[..., row, :] = rest if unitriangular else rest / a[..., row, row, None]
    return found


def lu_factor(x: Array, lu: Array, pivots: Array, info: Array) -> None:
    """Factor x = P L U with partial pivoting, all matrices of the batch at once.

    Shapes: x, lu [..., M, N], pivots [..., min(M, N)], info [...]
    """
    rows, columns = x.shape[-2:]
    found = x.reshape(prod(x.shape[:-2]), rows, columns).copy()
    each, size = np.arange(len(found)), min(rows, columns)
    exchanged = np.empty((len(found), size), pivots.dtype)
    for k in range(size):
        row = k + np.abs(found[:, k:, k]).argmax(1)
        exchanged[:, k] = row + 1
        top = found[each, row]
        found[each, row] = found[:, k]
        found[:, k] = top
        pivot = np.where(top[:, k] == 0, 1, top[:, k])
        found[:, k + 1 :, k] /= pivot[:, None]
        found[:, k + 1 :, k + 1 :] -= found[:, k + 1 :, k, None] * found[:, k, None, k + 1 :]
    lu[...] = found.reshape(x.shape)
    pivots[...] = exchanged.reshape(pivots.shape)
    is_zero = np.diagonal(lu, axis1=-2, axis2=-1) == 0
    info[...] = np.where(is_zero.any(-1), is_zero.argmax(-1) + 1, 0) if size else 0


def lu_solve(lu: Array, pivots: Array, b: Array, out: Array, transposed: bool) -> None:
    """Solve a x = b or a^T x = b from factors of a.

    Shapes: lu [..., N, N], pivots [..., N], b, out [..., N, K]
    """
    size = lu.shape[-1]
    count = prod(lu.shape[:-2])
    factors, rows = lu.reshape(count, size, size), pivots.reshape(count, size) - 1
    found = b.reshape(count, size, b.shape[-1]).copy()
    if transposed:
        factors = factors.swapaxes(1, 2)
        found = _solved(factors, found, upper=False, unitriangular=False)
        found = _solved(factors, found, upper=True, unitriangular=True)
        _exchange(found, rows, reversed(range(size)))
    else:
        _exchange(found, rows, range(size))
        found = _solved(factors, found, upper=False, unitriangular=True)
        found = _solved(factors, found, upper=True, unitriangular=False)
    out[...] = found.reshape(out.shape)


def _exchange(x: Array, rows: Array, order: Any) -> None:
    """Exchange each row of x with another, in an order. Shapes: x [B, N, K], rows [B, N]"""
    each = np.arange(len(x))
    for k in order:
        top = x[each, rows[:, k]]
        x[each, rows[:, k]] = x[:, k]
        x[:, k] = top


def qr(x: Array, q: Array, r: Array, complete: bool) -> None:
    """Shapes: x [..., M, N], q [..., M, K], r [..., K, N]"""
    q[...], r[...] = np.linalg.qr(x, "complete" if complete else "reduced")


def eigh(x: Array, values: Array, vectors: Array, upper: bool) -> None:
    """Shapes: x, vectors [..., N, N], values [..., N]"""
    _each(lambda a: np.linalg.eigh(a, "U" if upper else "L"), x, values, vectors)


def svd(x: Array, u: Array, s: Array, vh: Array, complete: bool) -> None:
    """Shapes: x [..., M, N], u [..., M, K], s [..., min(M, N)], vh [..., K, N]"""
    _each(lambda a: np.linalg.svd(a, complete), x, u, s, vh)


#: Largest 1-norm whose approximant is exact to rounding, and coefficients of its numerator.
_REACH = 5.371920351148152
_PADE = (
    64764752532480000, 32382376266240000, 7771770303897600, 1187353796428800, 129060195264000,
    10559470521600, 670442572800, 33522128640, 1323241920, 40840800, 960960, 16380, 182, 1,
)  # fmt: skip


def matrix_exp(x: Array, out: Array) -> None:
    """Exponential of each matrix by scaling and squaring, in float64.

    Shapes: x, out [..., N, N]
    Source: Higham 2005, The scaling and squaring method for the matrix exponential revisited
    """
    size = x.shape[-1]
    for place in np.ndindex(x.shape[:-2]):
        one = x[place].astype(np.float64)
        norm = np.abs(one).sum(0).max(initial=0)
        if not np.isfinite(norm):
            out[place] = np.nan
            continue
        squarings = max(0, int(np.ceil(np.log2(norm / _REACH)))) if norm else 0
        one /= 2.0**squarings
        square, unit = one @ one, np.eye(size)
        even, odd, power = np.zeros_like(one), np.zeros_like(one), unit
        for k in range(0, len(_PADE), 2):
            even += _PADE[k] * power
            odd += _PADE[k + 1] * power
            power = power @ square
        odd = one @ odd
        found = np.linalg.solve(even - odd, even + odd)
        for _ in range(squarings):
            found = found @ found
        out[place] = found


def householder_product(x: Array, tau: Array, out: Array) -> None:
    """Apply reflections 1 - tau v v^T to the first columns of the unit matrix, the last one first.

    Shapes: x, out [..., M, N], tau [..., K]
    """
    out[...] = np.eye(*x.shape[-2:], dtype=x.dtype)
    for k in reversed(range(tau.shape[-1])):
        below = out[..., k:, k:]
        v = x[..., k:, k, None].copy()
        v[..., 0, 0] = 1
        below -= tau[..., k, None, None] * v * (v.swapaxes(-1, -2) @ below)
