"""16-bit floating-point formats stored as uint16 words: float16, bfloat16 and CB16.

CB16 has 1 sign, 6 exponent and 9 mantissa bits. The vendor publishes no exponent bias; 31 is
csrun's default. All three have subnormals, infinities and NaN as in IEEE 754, and round to nearest,
ties to even.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.base.precision_names import CB16, CB16_EXPONENT_BIAS, MIXED

Floats = npt.NDArray[Any]
Words = npt.NDArray[Any]

WORD = "uint16"  # type of an array of words
_BLOCK = 1 << 15  # numbers that are rounded at a time
_FLOAT32_BITS, _FLOAT32_BIAS = 23, 127
_SIGN, _MAGNITUDE, _INFINITY, _QUIET = 0x80000000, 0x7FFFFFFF, 0x7F800000, 0x00400000


@dataclass(frozen=True)
class HalfFormat:
    """A format of 1 sign bit, 15 - `mantissa_bits` exponent bits, and `mantissa_bits`."""

    name: str
    mantissa_bits: int
    bias: int

    @property
    def text(self) -> str:
        """Name of the format; for CB16 with a bias other than the default, including the bias."""
        return f"{self.name}, exponent bias {self.bias}" if self.name == CB16 else self.name

    @property
    def exponent_bits(self) -> int:
        return 15 - self.mantissa_bits

    @property
    def dropped_bits(self) -> int:
        """Number of mantissa bits of float32 that a word drops."""
        return _FLOAT32_BITS - self.mantissa_bits

    @property
    def _kept_bits(self) -> int:
        """Mask of float32's bits that a number of the format may have."""
        return -(1 << self.dropped_bits) & 0xFFFFFFFF

    @property
    def infinity(self) -> int:
        """Word of positive infinity."""
        return ((1 << self.exponent_bits) - 1) << self.mantissa_bits

    @property
    def smallest_normal(self) -> float:
        return 2.0 ** (1 - self.bias)

    @property
    def smallest(self) -> float:
        """Smallest positive number, a subnormal."""
        return 2.0 ** (1 - self.bias - self.mantissa_bits)

    @property
    def largest(self) -> float:
        """Largest finite number."""
        exponent = (1 << self.exponent_bits) - 2 - self.bias
        return (2.0 - 2.0**-self.mantissa_bits) * 2.0**exponent

    @property
    def overflows_from(self) -> float:
        """Smallest number that rounds to infinity."""
        exponent = (1 << self.exponent_bits) - 2 - self.bias
        return (2.0 - 2.0 ** -(self.mantissa_bits + 1)) * 2.0**exponent

    @property
    def epsilon(self) -> float:
        """Distance from 1 to the next larger number."""
        return 2.0**-self.mantissa_bits

    @property
    def has_range_of_float32(self) -> bool:
        return self.bias == _FLOAT32_BIAS

    @property
    def is_ieee(self) -> bool:
        """Return whether it is float16, which NumPy converts, in hardware if available."""
        return (self.mantissa_bits, self.bias) == (10, 15)

    @property
    def rebias(self) -> int:
        """Difference of the exponent biases, shifted to float32's exponent field."""
        return (_FLOAT32_BIAS - self.bias) << _FLOAT32_BITS

    @property
    def aligner(self) -> float:
        """Number whose unit in the last place, in float32, is the smallest subnormal."""
        return self.smallest * 2.0**_FLOAT32_BITS

    def narrow(self, x: Floats, out: Words) -> None:
        """Round float32 to words, any shape."""
        for part, words in _blocks(x, out):
            if self.has_range_of_float32:
                rounded = self._rounded_bits(part, _scratch_of(part))
                dropped = np.uint32(self.dropped_bits)
                np.right_shift(rounded, dropped, out=words, casting="unsafe")
            elif self.is_ieee:
                with np.errstate(over="ignore"):
                    words[...] = part.astype(np.float16).view(np.uint16)
            else:
                words[...] = self._narrowed(part)
            if part.size and np.isnan(part.max()):
                self._set_nan(part, words)

    def words(self, x: Floats, out: Words) -> None:
        """Convert numbers of the format to words, any shape."""
        if self.has_range_of_float32 and x.flags.c_contiguous and out.flags.c_contiguous:
            out.reshape(-1)[...] = x.reshape(-1).view(np.uint16)[1::2]  # little-endian
        else:
            self.narrow(x, out)

    def _rounded_bits(self, x: Floats, out: Words) -> Words:
        """Return the bits after rounding; a carry out of the mantissa increments the exponent.

        The dropped bits are not cleared.
        """
        bits = x.view(np.uint32)
        np.right_shift(bits, np.uint32(self.dropped_bits), out=out)
        np.bitwise_and(out, np.uint32(1), out=out)
        np.add(out, np.uint32((1 << (self.dropped_bits - 1)) - 1), out=out)
        return np.add(out, bits, out=out)

    def _narrowed(self, x: Floats) -> Words:
        """Return words of a format with another range; undefined for NaN."""
        bits = x.view(np.uint32)
        sign, magnitude = (bits & _SIGN) >> 16, bits & _MAGNITUDE
        dropped = np.uint32(self.dropped_bits)
        half = (1 << (self.dropped_bits - 1)) - 1
        words: Words
        with np.errstate(over="ignore"):
            words = magnitude - np.uint32(self.rebias)
            words = (words + half + ((words >> dropped) & 1)) >> dropped
        np.minimum(words, self.infinity, out=words)
        small = magnitude < np.float32(self.smallest_normal).view(np.uint32)
        if small.any():
            # The sum's last place is the smallest subnormal: the addition rounds there.
            aligner = np.float32(self.aligner)
            with np.errstate(over="ignore", invalid="ignore"):
                aligned = (magnitude.view(np.float32) + aligner).view(np.uint32)
            np.copyto(words, aligned - aligner.view(np.uint32), where=small)
        words |= sign
        return words

    def _set_nan(self, x: Floats, words: Words) -> None:
        """Write quiet NaNs, with as much of the payload as fits."""
        bits = x.view(np.uint32)
        quiet = self.infinity | 1 << (self.mantissa_bits - 1)
        payload = (bits >> np.uint32(self.dropped_bits)) & ((1 << self.mantissa_bits) - 1)
        nan = payload | quiet | ((bits & _SIGN) >> 16)
        np.copyto(words, nan.astype(np.uint16), where=np.isnan(x))

    def widen(self, words: Words, out: Floats) -> None:
        """Convert words to float32, exactly, any shape."""
        if self.has_range_of_float32:
            np.left_shift(words, 16, out=out.view(np.uint32), dtype=np.uint32)
            return
        np.take(_table(self), words, out=out, mode="clip")  # every word is a valid index

    def round(self, x: Floats, out: Floats) -> None:
        """Round float32 to the nearest number of the format, any shape; out may be x."""
        for part, rounded in _blocks(x, out):
            self._round(part, rounded)

    @np.errstate(over="ignore", invalid="ignore")  # infinities and NaN are values like others
    def _round(self, x: Floats, out: Floats) -> None:
        if self.is_ieee:
            out[...] = x.astype(np.float16)
            return
        found, kept = self._rounded_bits(x, _scratch_of(x)), np.uint32(self._kept_bits)
        has_nan = x.size and np.isnan(x.max())
        if self.has_range_of_float32 and not has_nan and out.dtype == np.float32:
            np.bitwise_and(found, kept, out=out.view(np.uint32))
            return
        found &= kept
        rounded = found.view(np.float32)
        if not self.has_range_of_float32:
            # The sum's last place is the smallest subnormal: the addition rounds there.
            magnitude, aligner = np.abs(x), np.float32(self.aligner)
            small = magnitude < self.smallest_normal
            if small.any():
                aligned = np.copysign((magnitude + aligner) - aligner, x)
                np.copyto(rounded, aligned, where=small)
            large = np.abs(rounded) > np.float32(self.largest)
            if large.any():
                np.copyto(rounded, np.copysign(np.float32(np.inf), x), where=large)
        if has_nan:  # quiet, so that what is left of it is one
            np.copyto(found, (x.view(np.uint32) | _QUIET) & kept, where=np.isnan(x))
        out[...] = rounded

    def nearest(self, number: float) -> float:
        """The number of the format nearest to a float32."""
        found = np.array([number], np.float32)
        self.round(found, found)
        return float(found[0])


class _Scratch(threading.local):
    """Scratch integers of a block, per thread."""

    def __init__(self) -> None:
        self.integers = np.empty(_BLOCK, np.uint32)


_scratch = _Scratch()


def _scratch_of(x: Floats) -> Words:
    """Return scratch integers in the shape of x."""
    if x.size > _BLOCK:  # it is not contiguous, and no block
        return np.empty(x.shape, np.uint32)
    return _scratch.integers[: x.size].reshape(x.shape)


def _blocks(x: Floats, out: Words) -> Iterator[tuple[Floats, Words]]:
    """Yield blocks of the numbers and of their words, which fit a cache if both are contiguous."""
    x = np.ascontiguousarray(x, np.float32)
    if not out.flags.c_contiguous:
        yield x, out
        return
    flat, words = x.reshape(-1), out.reshape(-1)
    for start in range(0, flat.size, _BLOCK):
        yield flat[start : start + _BLOCK], words[start : start + _BLOCK]


@cache
def _table(kind: HalfFormat) -> Floats:
    """Value of each word."""
    words = np.arange(1 << 16, dtype=np.int64)
    mantissa = words & ((1 << kind.mantissa_bits) - 1)
    exponent = (words >> kind.mantissa_bits) & ((1 << kind.exponent_bits) - 1)
    hidden = np.where(exponent > 0, 1 << kind.mantissa_bits, 0)
    scale = np.maximum(exponent, 1) - kind.bias - kind.mantissa_bits
    exact = np.ldexp((hidden + mantissa).astype(np.float64), scale)
    values: Floats = exact.astype(np.float32)
    bits = values.view(np.uint32)
    special = exponent == (1 << kind.exponent_bits) - 1
    bits[special] = _INFINITY | (mantissa[special] << kind.dropped_bits).astype(np.uint32)
    bits |= ((words >> 15) << 31).astype(np.uint32)
    values.flags.writeable = False
    return values


FLOAT16 = HalfFormat("float16", 10, 15)
BFLOAT16 = HalfFormat("bfloat16", 7, 127)


def cbfloat16(bias: int = CB16_EXPONENT_BIAS) -> HalfFormat:
    """CB16 with an exponent bias, 1 to MOST_CB16_BIAS."""
    return HalfFormat(CB16, 9, bias)


#: Names of the checkpoint tensors that hold the state of loss scaling.
SCALE_KEYS = "loss_scale", "steps_since_rescale", "overflows_since_rescale"


def storage_format(
    precision: str, cb16_exponent_bias: int = CB16_EXPONENT_BIAS
) -> HalfFormat | None:
    """Return the 16-bit format of a run's precision; None for float32 and float64."""
    kinds = {each.name: each for each in (FLOAT16, BFLOAT16, cbfloat16(cb16_exponent_bias))}
    return kinds[precision.removeprefix(MIXED)] if precision.startswith(MIXED) else None
