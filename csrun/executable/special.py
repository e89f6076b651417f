"""The normal distribution's functions, which NumPy does not have, over preallocated arrays."""

from math import erfc, exp, pi, sqrt

import numpy as np
from numpy.polynomial import chebyshev

from csrun.executable.bind import Array

_K = 3.75 * sqrt(2)  # where |x| maps to the middle of the polynomial's range
_ASYMPTOTIC_FROM = 6.0
_ASYMPTOTIC_TERMS = 25
_DEGREES = {"float32": 9, "float64": 30}  # to within half a unit in the last place of erfc


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


def _smooth(t: "np.ndarray[tuple[int], np.dtype[np.float64]]") -> list[float]:
    """(1 + 2 z) exp(z z) erfc(z) at t = (z - k) / (z + k), in 1..1.13 for all z >= 0."""
    k = _K / sqrt(2)
    places = [k * (1 + at) / (1 - at) for at in t.tolist()]
    return [(1 + 2 * z) * _scaled_erfc(z) for z in places]


#: Coefficients by falling power of t, by NumPy's name of the element type.
_COEFFICIENTS = {
    dtype: chebyshev.cheb2poly(chebyshev.chebinterpolate(_smooth, degree))[::-1].tolist()
    for dtype, degree in _DEGREES.items()
}


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
