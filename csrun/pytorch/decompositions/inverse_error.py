"""Inverse error function, computed in float64."""

from collections.abc import Callable, Mapping, Sequence
from math import inf, nan, pi, sqrt
from typing import Any

import torch

Unary = Callable[[torch.Tensor], torch.Tensor]


def in_float64(function: Unary) -> Unary:
    """Return a function of floats that is computed in float64."""

    def call(x: torch.Tensor) -> torch.Tensor:
        kind = x.dtype if x.is_floating_point() else torch.get_default_dtype()
        return function(x.double()).to(kind)

    return call


def _polynomial(x: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
    """Horner's rule. coefficients: the highest first"""
    found: Any = coefficients[0]
    for number in coefficients[1:]:
        found = found * x + number
    return found


def erfinv(y: torch.Tensor) -> torch.Tensor:
    """The x with erf(x) = y: a rational function and two steps of Newton's method.

    Source: PyTorch, aten/src/ATen/native/Math.h, calc_erfinv
    """
    size = y.abs()
    square = y * y
    low = y * _polynomial(square, (-0.140543331, 0.914624893, -1.645349621, 0.886226899))
    low = low / _polynomial(square, (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0))
    is_low = size <= 0.7
    z = (-((1 - torch.where(is_low, 0.8, size)) / 2).log()).sqrt()
    high = _polynomial(z, (1.641345311, 3.429567803, -1.624906493, -1.970840454))
    high = y.sign() * high / _polynomial(z, (1.637067800, 3.543889200, 1.0))
    found = torch.where(is_low, low, high)
    for _ in range(2):
        slope = 2 / sqrt(pi) * (-found * found).exp()
        found = found - (found.erf() - y) / slope
    found = torch.where(size == 1, y * inf, found)
    return torch.where(size > 1, nan, found)


aten = torch.ops.aten
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {aten.erfinv.default: in_float64(erfinv)}
