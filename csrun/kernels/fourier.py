"""Discrete Fourier transforms by NumPy; real and imaginary parts are separate arrays."""

from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Axes = tuple[int, ...]


def _joined(real: Array, imag: Array) -> Array:
    found = np.empty(real.shape, np.result_type(real.dtype, np.complex64))
    found.real, found.imag = real, imag
    return found


def _write(x: Array, scale: float, real: Array, imag: Array) -> None:
    np.multiply(x.real, scale, out=real)
    np.multiply(x.imag, scale, out=imag)


def fft_r2c(x: Array, real: Array, imag: Array, dims: Axes, scale: float, onesided: bool) -> None:
    """Transform real numbers along axes, of which the last one may be onesided.

    Shapes: x [..., N, ...], real, imag [..., N, ...] or [..., N // 2 + 1, ...]
    """
    function = np.fft.rfftn if onesided else np.fft.fftn
    _write(function(x, axes=dims), scale, real, imag)


def fft_c2c(
    real_part: Array,
    imag_part: Array,
    real: Array,
    imag: Array,
    dims: Axes,
    scale: float,
    inverse: bool,
) -> None:
    """Transform complex numbers along axes. Shapes: all [...]"""
    x = _joined(real_part, imag_part)
    if inverse:
        _write(np.fft.ifftn(x, axes=dims, norm="forward"), scale, real, imag)
    else:
        _write(np.fft.fftn(x, axes=dims), scale, real, imag)


def fft_c2r(
    real_part: Array, imag_part: Array, out: Array, dims: Axes, scale: float, size: int
) -> None:
    """Invert a onesided transform of real numbers.

    Shapes: real_part, imag_part [..., size // 2 + 1, ...], out [..., size, ...]
    """
    sizes = [real_part.shape[d] for d in dims]
    sizes[-1] = size
    x = _joined(real_part, imag_part)
    np.multiply(np.fft.irfftn(x, sizes, axes=dims, norm="forward"), scale, out=out)
