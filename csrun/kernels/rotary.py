"""Rotary position embedding over preallocated arrays.

Source: Su et al. 2021, RoFormer, section 3.2
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def rotation_factors(
    length: int, size: int, base: float, is_inverse: bool, dtype: str, axes: int
) -> Array:
    """Return the rotation factors of pair i at position t: exp(j t base^(-2 i / size)), or their
    inverses.

    Shapes: -> complex [length, 1, …, size / 2], with as many axes in between as x has
    """
    frequencies = base ** -(np.arange(0, size, 2) / size)
    angles = np.outer(np.arange(length), frequencies)
    found: Array = np.exp((-1j if is_inverse else 1j) * angles)
    found = found.astype(np.result_type(dtype, "complex64"))
    return found.reshape(length, *(1,) * axes, size // 2)


def cosines_and_sines(rotation_factors: Array) -> tuple[Array, Array]:
    """Return cosines and sines, each contiguous."""
    return np.ascontiguousarray(rotation_factors.real), np.ascontiguousarray(rotation_factors.imag)


def rotate_pairs(x: Array, out: Array, rotation_factors: Array) -> None:
    """Rotate adjacent pairs [..., T, ..., E] -> the same; the rest of the contiguous last axis is
    copied.

    Shapes: x, out [..., T, ..., E], turns [T, ..., R / 2]
    """
    size = 2 * rotation_factors.shape[-1]
    pairs, result = (
        x[..., :size].view(rotation_factors.dtype),
        out[..., :size].view(rotation_factors.dtype),
    )
    np.multiply(pairs, rotation_factors, out=result)
    _keep(x, out, size)


def rotate_halves(x: Array, out: Array, cosines: Array, sines: Array, part: Array) -> None:
    """Rotate half with half [..., T, ..., E] -> the same, a part of the first axis at a time.

    Shapes: x, out [..., T, ..., E], cosines, sines [T, ..., R / 2], part the shape of x[0], with a
    last axis of R / 2; that of x if no axis precedes the positions
    """
    if part.ndim == x.ndim:
        _rotate_half(x, out, cosines, sines, part)
    else:
        for own, result in zip(x, out, strict=True):
            _rotate_half(own, result, cosines, sines, part)
    _keep(x, out, 2 * cosines.shape[-1])


def _rotate_half(x: Array, out: Array, cosines: Array, sines: Array, part: Array) -> None:
    half = cosines.shape[-1]
    first, second = slice(0, half), slice(half, 2 * half)
    np.multiply(x[..., first], cosines, out=out[..., first])
    np.multiply(x[..., second], sines, out=part)
    np.subtract(out[..., first], part, out=out[..., first])
    np.multiply(x[..., second], cosines, out=out[..., second])
    np.multiply(x[..., first], sines, out=part)
    np.add(out[..., second], part, out=out[..., second])


def _keep(x: Array, out: Array, size: int) -> None:
    if size < x.shape[-1]:
        np.copyto(out[..., size:], x[..., size:])
