"""Functions for formulas that NumPy does not have.

The compiler traces formulas and registers its own version of each function for traced values.
"""

import math
from functools import singledispatch
from typing import Any

import numpy as np

from csrun.base.half_formats import half_format


@singledispatch
def logistic(x: Any) -> Any:
    """1 / (1 + exp(-x))."""
    return 1 / (1 + np.exp(-x))


@singledispatch
def normal_cdf(x: Any) -> Any:
    """P(N(0, 1) < x)."""
    erf = np.vectorize(math.erf, otypes=[x.dtype])
    return 0.5 * (1 + erf(x / math.sqrt(2)))


@singledispatch
def round_half(x: Any, mantissa_bits: int, bias: int) -> Any:
    """The nearest number of a 16-bit format, ties to even."""
    out = np.empty_like(x)
    half_format(mantissa_bits, bias).round(np.asarray(x, np.float32), out)
    return out


@singledispatch
def narrow_half(x: Any, mantissa_bits: int, bias: int) -> Any:
    """Words of a 16-bit format."""
    out = np.empty(x.shape, np.uint16)
    half_format(mantissa_bits, bias).narrow(np.asarray(x, np.float32), out)
    return out


@singledispatch
def half_words(x: Any, mantissa_bits: int, bias: int) -> Any:
    """Words of numbers that a 16-bit format has."""
    out = np.empty(x.shape, np.uint16)
    half_format(mantissa_bits, bias).words(np.asarray(x, np.float32), out)
    return out


@singledispatch
def widen_half(words: Any, mantissa_bits: int, bias: int) -> Any:
    """Numbers of words of a 16-bit format."""
    out = np.empty(words.shape, np.float32)
    half_format(mantissa_bits, bias).widen(words, out)
    return out
