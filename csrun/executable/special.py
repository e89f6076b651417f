"""Functions that NumPy does not have, over preallocated arrays."""

from math import erfc, exp, pi, sqrt

import numpy as np
from numpy.polynomial import chebyshev

from csrun.executable.bind import Array

_K = 3.75 * sqrt(2)  # where |x| maps to the middle of the polynomial's range
_ASYMPTOTIC_FROM = 6.0
_ASYMPTOTIC_TERMS = 25
_DEGREES = {"float32": 11, "float64": 20}  # where a higher one brings nothing any more


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


#: By NumPy's name of the element type.
_COEFFICIENTS = {dtype: _coefficients(degree) for dtype, degree in _DEGREES.items()}


def logistic(x: Array, out: Array) -> None:
    """out = 1 / (1 + exp(-x)); out may be x. Where the power overflows it is 0.

    To keep it from overflowing would cost as much as the power: NumPy's minimum of an array and a
    number is slow.
    """
    np.negative(x, out=out)
    with np.errstate(over="ignore"):
        np.exp(out, out=out)
    np.add(out, 1, out=out)
    np.divide(1, out, out=out)


def normal_cdf(
    x: Array, cdf: Array, exponential: Array, tail: Array, power: Array, mask: Array
) -> None:
    """cdf = P(N(0, 1) < x), and exponential = exp(-x x / 2); tail, power and mask are scratch.

    Both tails keep their relative precision.

    Shapes: all of one shape; mask bool
    Source: Shepherd and Laframboise 1981, Chebyshev approximation of (1 + 2x) exp(x²) erfc(x) in
    0 <= x < ∞, with our own interpolation of a degree that fits the precision
    """
    np.multiply(x, x, out=exponential)
    np.multiply(exponential, -0.5, out=exponential)
    np.exp(exponential, out=exponential)
    np.absolute(x, out=tail)
    np.add(tail, _K, out=cdf)
    np.divide(-2 * _K, cdf, out=cdf)
    np.add(cdf, 1, out=cdf)  # t
    np.multiply(tail, 2 * sqrt(2), out=tail)
    np.add(tail, 2, out=tail)
    np.divide(exponential, tail, out=tail)  # exp(-z z) / (2 (1 + 2 z)), z = |x| / sqrt(2)
    first, second, *others = _COEFFICIENTS[x.dtype.name]
    np.multiply(cdf, first, out=power)
    np.add(power, second, out=power)
    for coefficient in others:
        np.multiply(power, cdf, out=power)
        np.add(power, coefficient, out=power)
    np.multiply(tail, power, out=tail)  # P(N(0, 1) > |x|)
    np.subtract(1, tail, out=cdf)
    np.less(x, 0, out=mask)
    np.copyto(cdf, tail, where=mask)
