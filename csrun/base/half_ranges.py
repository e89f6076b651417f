"""Counts of a tensor's zeros, subnormals and overflows in a 16-bit format."""

from collections import Counter
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from csrun.base.half_formats import WORD, HalfFormat

AnyArray = npt.NDArray[Any]


class RangeCounts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Range statistics of `count` numbers.

    zeros: exact zeros.
    flushed: other numbers that round to zero.
    overflows: numbers that round to infinity, or are not finite already.
    powers: counts of the finite numbers by binary exponent.
    """

    count: int
    zeros: int
    flushed: int
    subnormals: int
    overflows: int
    powers: dict[int, int]

    def __add__(self, other: "RangeCounts") -> "RangeCounts":
        return RangeCounts(
            self.count + other.count,
            self.zeros + other.zeros,
            self.flushed + other.flushed,
            self.subnormals + other.subnormals,
            self.overflows + other.overflows,
            dict(Counter(self.powers) + Counter(other.powers)),
        )


def range_counts(values: AnyArray, half: HalfFormat) -> RangeCounts:
    """Count the ranges of a tensor of any shape, float32 or words of the format."""
    magnitude = np.abs(widened(values, half).reshape(-1))
    is_small = magnitude < half.overflows_from  # false for NaN
    finite = magnitude[np.isfinite(magnitude) & (magnitude > 0)]
    rounded = np.empty_like(magnitude)
    half.round(magnitude, rounded)
    is_zero = rounded == 0
    zeros = int(np.count_nonzero(magnitude == 0))
    subnormals = np.count_nonzero((rounded < half.smallest_normal) & ~is_zero)
    exponents, counts = np.unique(np.frexp(finite)[1] - 1, return_counts=True)
    return RangeCounts(
        magnitude.size,
        zeros,
        int(np.count_nonzero(is_zero)) - zeros,
        int(subnormals),
        int(np.count_nonzero(~is_small)),
        dict(zip(exponents.tolist(), counts.tolist(), strict=True)),
    )


def widened(values: AnyArray, half: HalfFormat) -> AnyArray:
    """Convert words of the format, or other numbers, to float32."""
    if values.dtype != np.dtype(WORD):
        return np.asarray(values, np.float32)
    found = np.empty(values.shape, np.float32)
    half.widen(np.asarray(values, order="C"), found)  # keeps a 0-d array 0-d
    return found
