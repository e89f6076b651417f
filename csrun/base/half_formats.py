"""16-bit floating-point formats stored as uint16 words: float16, bfloat16 and CB16.

CB16 has 1 sign, 6 exponent and 9 mantissa bits. The vendor publishes no exponent bias; 31 is
csrun's default. All three have subnormals, infinities and NaN as in IEEE 754, and round to nearest,
ties to even.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from csrun.base.precision_names import CB16, CB16_EXPONENT_BIAS, MIXED

Floats = npt.NDArray[Any]
Words = npt.NDArray[Any]

WORD = "uint16"  # type of an array of words
#: Numbers that are converted at a time. Measured on AMD Zen 2 with 512 KiB of L2 per core: with a
#: quarter as many a conversion takes 1.2 times as long, with an eighth 1.4: a call of NumPy costs
#: more than the way to the L3.
_BLOCK = 1 << 18
_FLOAT32_BITS, _FLOAT32_BIAS = 23, 127
_ONE = np.uint32(1)
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

    @cached_property
    def _kept(self) -> np.uint32:
        """Mask of float32's bits that a number of the format may have."""
        return np.uint32(-(1 << self.dropped_bits) & 0xFFFFFFFF)

    @cached_property
    def _dropped(self) -> np.uint32:
        return np.uint32(self.dropped_bits)

    @cached_property
    def _below_half(self) -> np.uint32:
        """Largest value of the dropped bits that is less than half a unit in the last place."""
        return np.uint32((1 << (self.dropped_bits - 1)) - 1)

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
    def rebias(self) -> int:
        """Difference of the exponent biases, shifted to float32's exponent field."""
        return (_FLOAT32_BIAS - self.bias) << _FLOAT32_BITS

    @property
    def aligner(self) -> float:
        """Number whose unit in the last place, in float32, is the smallest subnormal."""
        return self.smallest * 2.0**_FLOAT32_BITS

    def narrow(self, x: Floats, out: Words) -> None:
        """Round float32 to words, any shape."""
        _convert_blocks(self._narrow, np.asarray(x, np.float32), out, WORD)

    def words(self, x: Floats, out: Words) -> None:
        """Convert numbers of the format to words, any shape."""
        _convert_blocks(_copy_upper if self.has_range_of_float32 else self._narrow, x, out, WORD)

    def widen(self, words: Words, out: Floats) -> None:
        """Convert words to float32, exactly, any shape."""
        convert = _write_upper if self.has_range_of_float32 else self._lookup
        _convert_blocks(convert, words, out, "float32")

    def round(self, x: Floats, out: Floats) -> None:
        """Round float32 to the nearest number of the format, any shape; out may be x."""
        _convert_blocks(self._round, np.asarray(x, np.float32), out, "float32")

    def _narrow(self, x: Floats, words: Words) -> None:
        bits = x.view(np.uint32)
        if self.has_range_of_float32:
            _copy_upper(self._rounded_bits(bits), words)
        else:
            self._narrow_range(bits, words)
        if _has_nan(x):
            self._set_nan(x, words)

    def _rounded_bits(self, bits: Words) -> Words:
        """Return the bits after rounding; a carry out of the mantissa increments the exponent.

        The dropped bits are not cleared.
        """
        out = _scratch.of(bits, 0)
        np.right_shift(bits, self._dropped, out=out)
        np.bitwise_and(out, _ONE, out=out)
        np.add(out, self._below_half, out=out)
        return np.add(out, bits, out=out)

    def _narrow_range(self, bits: Words, words: Words) -> None:
        """Write words of a format with another range; undefined for NaN."""
        magnitude = np.bitwise_and(bits, np.uint32(_MAGNITUDE), out=_scratch.of(bits, 1))
        rounded = self._rounded_bits(magnitude)
        np.subtract(rounded, np.uint32(self.rebias), out=rounded)
        np.right_shift(rounded, self._dropped, out=rounded)
        # NumPy's minimum of an array and a number takes three times as long as a maximum.
        if np.maximum.reduce(magnitude) >= np.float32(self.overflows_from).view(np.uint32):
            np.minimum(rounded, np.uint32(self.infinity), out=rounded)
        small = magnitude < np.float32(self.smallest_normal).view(np.uint32)
        if small.any():
            # The sum's last place is the smallest subnormal: the addition rounds there.
            aligner, numbers = np.float32(self.aligner), magnitude.view(np.float32)
            with np.errstate(invalid="ignore"):
                np.add(numbers, aligner, out=numbers)
            np.subtract(magnitude, aligner.view(np.uint32), out=magnitude)
            np.copyto(rounded, magnitude, where=small)
        sign = np.right_shift(bits, np.uint32(16), out=magnitude)
        np.bitwise_and(sign, np.uint32(_SIGN >> 16), out=sign)
        np.bitwise_or(rounded, sign, out=rounded)
        np.copyto(words, rounded, casting="unsafe")

    def _set_nan(self, x: Floats, words: Words) -> None:
        """Write quiet NaNs, with as much of the payload as fits."""
        bits = x.view(np.uint32)
        quiet = self.infinity | 1 << (self.mantissa_bits - 1)
        payload = (bits >> self._dropped) & ((1 << self.mantissa_bits) - 1)
        nan = payload | quiet | ((bits & _SIGN) >> 16)
        np.copyto(words, nan.astype(np.uint16), where=np.isnan(x))

    def _lookup(self, words: Words, out: Floats) -> None:
        np.take(_table(self), words, out=out, mode="clip")  # every word is a valid index

    def _round(self, x: Floats, out: Floats) -> None:
        bits, kept = x.view(np.uint32), self._kept
        found, has_nan = self._rounded_bits(bits), _has_nan(x)
        if self.has_range_of_float32 and not has_nan:
            np.bitwise_and(found, kept, out=out.view(np.uint32))
            return
        np.bitwise_and(found, kept, out=found)
        if not self.has_range_of_float32:
            self._round_range(x, found.view(np.float32))
        if has_nan:  # quiet, so that what is left of it is one
            np.copyto(found, (bits | _QUIET) & kept, where=np.isnan(x))
        out[...] = found.view(np.float32)

    @np.errstate(invalid="ignore")  # NaN is a value like others
    def _round_range(self, x: Floats, rounded: Floats) -> None:
        """Correct numbers below and above the normal ones of a format with another range."""
        magnitude = np.abs(x, out=_scratch.of(x, 1).view(np.float32))
        small = magnitude < np.float32(self.smallest_normal)
        large = magnitude >= np.float32(self.overflows_from)
        if small.any():
            # The sum's last place is the smallest subnormal: the addition rounds there.
            aligner = np.float32(self.aligner)
            np.add(magnitude, aligner, out=magnitude)
            np.subtract(magnitude, aligner, out=magnitude)
            np.copyto(rounded, np.copysign(magnitude, x, out=magnitude), where=small)
        if large.any():
            np.copyto(rounded, np.copysign(np.float32(np.inf), x), where=large)

    def nearest(self, number: float) -> float:
        """The number of the format nearest to a float32."""
        found = np.array([number], np.float32)
        self.round(found, found)
        return float(found[0])


class _Scratch(threading.local):
    """Two arrays of scratch integers of a block, per thread."""

    def __init__(self) -> None:
        self._integers = np.empty((2, _BLOCK), np.uint32)

    def of(self, block: Floats | Words, number: int) -> Words:
        return self._integers[number, : block.size]


_scratch = _Scratch()


def _convert_blocks(
    convert: Callable[[Any, Any], None], x: Floats | Words, out: Floats | Words, dtype: str
) -> None:
    """Convert x to `out`, of equal shape; out may be x.

    convert: called with blocks of both, contiguous and with one axis; that of out has the dtype.
    """
    if x.flags.f_contiguous and out.flags.f_contiguous:
        x, out = x.T, out.T
    is_flat = out.flags.c_contiguous and out.dtype == dtype
    into = out if is_flat else np.empty(out.shape, dtype)
    numbers, found = np.ascontiguousarray(x).reshape(-1), into.reshape(-1)
    for start in range(0, numbers.size, _BLOCK):
        convert(numbers[start : start + _BLOCK], found[start : start + _BLOCK])
    if not is_flat:
        out[...] = into


def _has_nan(block: Floats) -> bool:
    largest = np.maximum.reduce(block)
    return bool(largest != largest)


def _copy_upper(numbers: Floats | Words, words: Words) -> None:
    """Copy the upper halves of 32-bit numbers.

    Read two bytes further on, they are the lower halves, which a cast takes three times as fast as
    a strided copy.
    """
    further = numbers.view(np.uint8)[2:-2].view(np.uint32)  # little-endian
    np.copyto(words[:-1], further, casting="unsafe")
    words[-1] = numbers[-1:].view(np.uint16)[1]


def _write_upper(words: Words, numbers: Floats) -> None:
    """Write the upper halves of 32-bit numbers, with zeros below, in the same way."""
    further = numbers.view(np.uint8)[2:-2].view(np.uint32)
    np.copyto(further, words[:-1])  # each with the lower half of the next number
    numbers[:1].view(np.uint16)[0] = 0
    numbers[-1:].view(np.uint16)[1] = words[-1]


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


@cache
def half_format(mantissa_bits: int, bias: int) -> HalfFormat:
    """Return the format with these numbers of bits, without a name."""
    return HalfFormat("", mantissa_bits, bias)


FLOAT16 = HalfFormat("float16", 10, 15)
BFLOAT16 = HalfFormat("bfloat16", 7, 127)


def cbfloat16(bias: int = CB16_EXPONENT_BIAS) -> HalfFormat:
    """CB16 with an exponent bias, 1 to MOST_CB16_BIAS."""
    return HalfFormat(CB16, 9, bias)


#: Names of the checkpoint tensors that hold the state of loss scaling, which are the original's,
#: and of all such tensors.
SCALE_KEYS = "loss_scale", "steps_since_rescale", "overflows_since_rescale"
SCALE_TENSORS = *SCALE_KEYS, "skipped_steps"


def storage_format(
    precision: str, cb16_exponent_bias: int = CB16_EXPONENT_BIAS
) -> HalfFormat | None:
    """Return the 16-bit format of a run's precision; None for float32 and float64."""
    kinds = {each.name: each for each in (FLOAT16, BFLOAT16, cbfloat16(cb16_exponent_bias))}
    return kinds[precision.removeprefix(MIXED)] if precision.startswith(MIXED) else None
