"""Mantissa and exponent of floats, and the next float."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import torch


def frexp(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Mantissa, of magnitude 0.5 to 1, and exponent of 2; of 0 and infinity it is 0."""
    size = x.abs()
    size = torch.where((size > 0) & (size < inf), size, 0.5)
    exponent = size.log2().floor() + 1
    for _ in range(2):  # the logarithm may be rounded to a whole number
        ratio = _scaled(size, -exponent)
        exponent = exponent + (ratio >= 1).to(x.dtype) - (ratio < 0.5).to(x.dtype)
    return _scaled(x, -exponent), exponent.int()


def _scaled(x: torch.Tensor, exponent: torch.Tensor) -> torch.Tensor:
    """x 2^exponent, in two steps, neither of which is infinite."""
    half = (exponent / 2).trunc()
    return x * torch.pow(2.0, half) * torch.pow(2.0, exponent - half)


def nextafter(x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    """The next float from x in a direction.

    Source: Rump, Zimmermann, Boldo and Melquiond 2009, Computing predecessor and successor in
    rounding to nearest, algorithm 1; near 0, where floats are evenly spaced, one spacing
    """
    x, to = torch.broadcast_tensors(x, to)
    kind, size = torch.finfo(x.dtype), x.abs()
    half, sign = kind.eps / 2, torch.where(to > x, 1.0, -1.0).to(x.dtype)
    scale = torch.where(size < 1, 2.0**64, 1.0).to(x.dtype)  # steps are normal numbers
    found = (x * scale + sign * (size * scale * (half * (1 + kind.eps)))) / scale
    is_small = size < 2 * kind.smallest_normal
    found = torch.where(is_small, x + sign * (kind.smallest_normal * kind.eps), found)
    found = torch.where(size == inf, x.sign() * kind.max, found)
    return torch.where(x == to, to, torch.where((x != x) | (to != to), x + to, found))


aten = torch.ops.aten
DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    aten.frexp.Tensor: frexp,
    aten.nextafter.default: nextafter,
}
