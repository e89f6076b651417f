"""Modified Bessel functions and the scaled complementary error function, by Chebyshev series.

The series are computed when they are first used; all is in float64.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import erfc
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from csrun.pytorch.decompositions.inverse_error import in_float64

Floats = npt.NDArray[np.longdouble]

PI = 4 * np.arctan(np.longdouble(1))
NEAR = 8  # where the series of small arguments ends
DEGREE = 27
TERMS = 200  # of the continued fraction
POINTS = 1024  # of the midpoint rule, exact to rounding for arguments up to 4e4


def _scaled(order: int, x: Floats) -> Floats:
    """exp(-x) I(x) / x^order for x >= 0, by the midpoint rule on a periodic function.

    Source: Abramowitz and Stegun 1964, 9.6.18
    """
    angles = (np.arange(POINTS, dtype=np.longdouble) + 0.5) * (PI / POINTS)
    values = np.exp(-2 * x[:, None] * np.sin(angles / 2) ** 2) * np.sin(angles) ** (2 * order)
    return np.asarray(values.mean(1))


def _coefficients(function: Callable[[Floats], Floats]) -> Sequence[float]:
    """Return the Chebyshev coefficients of a function on [-1, 1], from its values at the nodes."""
    angles = (np.arange(DEGREE + 1, dtype=np.longdouble) + 0.5) * (PI / (DEGREE + 1))
    values = function(np.cos(angles))
    found = np.cos(angles * np.arange(DEGREE + 1)[:, None]) @ values * 2 / (DEGREE + 1)
    return (float(found[0] / 2), *map(float, found[1:]))


@cache
def _near(order: int) -> Sequence[float]:
    """Series of exp(-x) I(x) / x^order in x / 4 - 1, for x <= 8."""
    return _coefficients(lambda t: _scaled(order, 4 * (t + 1)))


@cache
def _far(order: int) -> Sequence[float]:
    """Series of exp(-x) I(x) sqrt(x) in 16 / x - 1, for x >= 8."""

    def at(t: Floats) -> Floats:
        x = 16 / (t + 1)
        return np.asarray(_scaled(order, x) * x ** (order + 0.5))

    return _coefficients(at)


def _series(t: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    """Sum of Chebyshev polynomials. Source: Clenshaw 1955"""
    last: Any = 0.0
    found: Any = 0.0
    for number in coefficients[:0:-1]:
        last, found = found, 2 * t * found - last + number
    return torch.as_tensor(t * found - last + coefficients[0])


def scaled_bessel(order: int, x: torch.Tensor) -> torch.Tensor:
    """exp(-|x|) I(x)."""
    size = x.abs()
    near = _series(size.clamp(max=NEAR) / 4 - 1, _near(order))
    far = _series(16 / size.clamp(min=NEAR) - 1, _far(order)) / size.clamp(min=NEAR).sqrt()
    near, far = (near * x, far * x.sign()) if order else (near, far)
    return torch.where(size <= NEAR, near, far)


def bessel(order: int, x: torch.Tensor) -> torch.Tensor:
    """I(x)."""
    return x.abs().exp() * scaled_bessel(order, x)


@cache
def _of_erfcx() -> Sequence[float]:
    """Series of (x + 4) exp(x^2) erfc(x) in 8 / (x + 4) - 1, for x >= 0.

    Source: Abramowitz and Stegun 1964, 7.1.14, for x >= 2
    """

    def at(t: Floats) -> Floats:
        x = 8 / (t + 1) - 4
        fraction = x
        for k in range(TERMS, 0, -1):
            fraction = x + k / (2 * fraction)
        low = np.minimum(x, 2)
        plain = np.exp(low * low) * np.array([erfc(each) for each in low])
        return np.asarray((x + 4) * np.where(x < 2, plain, 1 / (np.sqrt(PI) * fraction)))

    return _coefficients(at)


def erfcx(x: torch.Tensor) -> torch.Tensor:
    """exp(x^2) erfc(x)."""
    size = x.abs()
    found = _series(8 / (size + 4) - 1, _of_erfcx()) / (size + 4)
    return torch.where(x < 0, 2 * (x * x).exp() - found, found)


aten = torch.ops.aten
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten.i0.default: in_float64(partial(bessel, 0)),
    aten.special_i0e.default: in_float64(partial(scaled_bessel, 0)),
    aten.special_i1.default: in_float64(partial(bessel, 1)),
    aten.special_i1e.default: in_float64(partial(scaled_bessel, 1)),
    aten.special_modified_bessel_i0.default: in_float64(partial(bessel, 0)),
    aten.special_modified_bessel_i1.default: in_float64(partial(bessel, 1)),
    aten.special_erfcx.default: in_float64(erfcx),
}
