"""Functions that NumPy does not have, over preallocated arrays."""

import threading
from collections.abc import Sequence
from math import erfc, exp, pi, sqrt
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev

from csrun.base.half_formats import half_format
from csrun.executable.arrays import Array

_K = 3.75 * sqrt(2)  # |x| that maps to the middle of the polynomial's range
_ASYMPTOTIC_FROM = 6.0
_ASYMPTOTIC_TERMS = 25
_DEGREE = 20  # degree above which float64 gains nothing


def _scaled_erfc(z: float) -> float:
    """exp(z z) erfc(z); beyond 6 by its asymptotic series, whose smallest term is below 1e-15.

    Source: Abramowitz and Stegun 1964, formula 7.1.23
    """
    if z < _ASYMPTOTIC_FROM:
        return exp(z * z) * erfc(z)
    term = total = 1.0
    for number in range(1, _ASYMPTOTIC_TERMS):
        term *= -(2 * number - 1) / (2 * z * z)
        total += term
    return total / (z * sqrt(pi))


def _coefficients(degree: int) -> list[float]:
    """(1 + 2 z) exp(z z) erfc(z) in t = (z - k) / (z + k), by falling power; 1..1.13 for z >= 0."""
    k, places = _K / sqrt(2), chebyshev.chebpts1(degree + 1)
    at = [k * (1 + t) / (1 - t) for t in places.tolist()]
    values = np.array([(1 + 2 * z) * _scaled_erfc(z) for z in at])
    found = chebyshev.cheb2poly(chebyshev.chebfit(places, values, degree))
    return [float(value) for value in found[::-1]]


_COEFFICIENTS = _coefficients(_DEGREE)

#: P(u), by falling power: tanh(x P(x x)) is erf(x / sqrt(2)). A minimax fit, weighted by the effect
#: of
#: an error on x cdf(x): below 7e-8 of max(1, |x|). P is positive and increasing for all u >= 0.
TANH_COEFFICIENTS = (
    1.80935665e-09,
    -1.33646611e-07,
    3.97310964e-06,
    -5.52779199e-05,
    -3.29548181e-05,
    3.63339114e-02,
    7.97884493e-01,
)


def where(condition: Array, x: Any, y: Any, out: Array) -> None:
    """Select elementwise, any shape: x where the condition is true, else y; out may be x, not y.

    Uses bit operations in three passes, or one if y is 0: y ^ (x ^ y) condition. NumPy's masked
    copies take several times as long because of branch mispredictions.
    """
    bits = f"i{out.itemsize}"
    into = out.view(bits)
    first = np.asarray(x, out.dtype).view(bits)
    second = np.asarray(y, out.dtype).view(bits)
    if second.ndim == 0 and not second:
        np.multiply(first, condition, out=into)
        return
    np.bitwise_xor(first, second, out=into)
    np.multiply(into, condition, out=into)
    np.bitwise_xor(into, second, out=into)


def largest(x: Array, tile: Array, out: Array) -> None:
    """Row maxima [R, C] -> [R, 1], computed in the transpose of x, in the tile.

    Shapes: x, tile [R, C], out [R, 1]
    """
    transposed = tile.reshape(x.shape[::-1])
    np.copyto(transposed, x.T)
    np.maximum.reduce(transposed, axis=0, out=out[:, 0])


def logistic(x: Array, out: Array) -> None:
    """Logistic, any shape: 1 / (1 + exp(-x)); out may be x. It is 0 where the exponential
    overflows.

    Avoiding the overflow would cost as much as the exponential, because NumPy's minimum of an array
    and a scalar is slow.
    """
    np.negative(x, out=out)
    with np.errstate(over="ignore"):
        np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.divide(1, out, out=out)


def normal_cdf(x: Array, out: Array, cdf: Array, scratch: Array) -> None:
    """Normal CDF, any shape: P(N(0, 1) < x); out may be x, or cdf, which is scratch.

    The error is below 1.5e-7 in float32, as ATen's, and 2e-15 in float64.

    Shapes: all of one shape
    """
    (_by_tanh if x.dtype == np.float32 else _by_erfc)(x, out, cdf, scratch)


def _by_tanh(x: Array, out: Array, cdf: Array, square: Array) -> None:
    np.square(x, out=square)
    _polynomial(square, TANH_COEFFICIENTS, cdf)
    np.multiply(cdf, x, out=cdf)
    np.tanh(cdf, out=cdf)
    np.add(cdf, 1, out=cdf)
    np.multiply(cdf, 0.5, out=out)


def _by_erfc(x: Array, out: Array, cdf: Array, other: Array) -> None:
    """Source: Shepherd and Laframboise 1981, Chebyshev approximation of (1 + 2x) exp(x²) erfc(x) in
    0 <= x < ∞, with our own interpolation
    """
    np.absolute(x, out=other)
    np.add(other, _K, out=other)
    np.divide(-2 * _K, other, out=other)
    np.add(other, 1, out=other)  # t
    _polynomial(other, _COEFFICIENTS, cdf)
    np.absolute(x, out=other)
    np.multiply(other, 2 * sqrt(2), out=other)
    np.add(other, 2, out=other)
    np.divide(cdf, other, out=cdf)
    np.square(x, out=other)
    np.multiply(other, -0.5, out=other)
    np.exp(other, out=other)
    np.multiply(cdf, other, out=cdf)  # P(N(0, 1) > |x|)
    np.subtract(0.5, cdf, out=cdf)
    np.copysign(cdf, x, out=cdf)
    np.add(cdf, 0.5, out=out)


def _polynomial(x: Array, coefficients: Sequence[float], out: Array) -> None:
    """Polynomial by Horner's rule; coefficients by falling power."""
    first, second, *others = coefficients
    np.multiply(x, first, out=out)
    np.add(out, second, out=out)
    for coefficient in others:
        np.multiply(out, x, out=out)
        np.add(out, coefficient, out=out)


def round_half(x: Array, mantissa_bits: int, bias: int, out: Array) -> None:
    """Round to numbers of a 16-bit format, any shape; out may be x."""
    half_format(mantissa_bits, bias).round(x.astype(np.float32, copy=False), out)


def narrow_half(x: Array, mantissa_bits: int, bias: int, out: Array) -> None:
    """Round to words of a 16-bit format, any shape: float32 -> uint16."""
    half_format(mantissa_bits, bias).narrow(x, out)


class _Widened(threading.local):
    """Memory per thread for the words that were widened last."""

    memory = np.empty(0, np.float32)


_widened = _Widened()


def widened(words: Array, mantissa_bits: int, bias: int) -> Array:
    """Float32 of words, which lie as they do, until the next call in this thread.

    Memory that is new in each step would take a tenth of the step.
    """
    is_transposed = words.flags.f_contiguous and not words.flags.c_contiguous
    rows = words.T if is_transposed else words
    if _widened.memory.size < words.size:
        _widened.memory = np.empty(words.size, np.float32)
    found = _widened.memory[: words.size].reshape(rows.shape)
    half_format(mantissa_bits, bias).widen(rows, found)
    return found.T if is_transposed else found


def half_words(x: Array, mantissa_bits: int, bias: int, out: Array) -> None:
    """Words of numbers that a 16-bit format has, any shape: float32 -> uint16."""
    half_format(mantissa_bits, bias).words(x, out)


def widen_half(words: Array, mantissa_bits: int, bias: int, out: Array) -> None:
    """Widen words of a 16-bit format, any shape: uint16 -> float32."""
    half_format(mantissa_bits, bias).widen(words, out)
