"""Sine and cosine of float32 lanes, computed in float64.

x is reduced to r = x - k pi/2 with |r| <= pi/4: up to 2 ** 30 with pi/2 as the sum of two numbers,
above that in integers, with a table of the fraction bits of 2 ** n / (2 pi).

Source: Payne and Hanek 1983 for large numbers; Taylor's series of r
"""

from functools import cache
from math import factorial, pi

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_functions.lane_math import LaneMath
from csrun.compiler.emit.llvm.lane_values import LaneValue

_HALF_PI_HIGH, _HALF_PI_LOW = pi / 2, 6.123233995736766e-17
_ROUNDER = 1.5 * 2.0**52  # adding it rounds a number to an integer
_SIN = tuple((-1.0) ** n / factorial(2 * n + 1) for n in range(5, -1, -1))  # in r r, times r
_COS = tuple((-1.0) ** n / factorial(2 * n) for n in range(5, -1, -1))
_LARGE_EXPONENT, _EXPONENTS = 30, 98  # exponents of large numbers: 30 to 127
_LOW_BITS = 40  # bits of a table's second word: times a mantissa they fill 64 bits
_TABLE = "sine.table"
_PI_BITS = 320  # of pi, after the point


class Sine:
    """Sine and cosine of float32 lanes."""

    def __init__(self, code: Code, x: LaneValue) -> None:
        self._code = code
        self._x = x
        self._math = LaneMath(code, x.kind.of("float64"))
        self._quarters, self._r = self._reduced()

    def sin(self) -> LaneValue:
        """Sine: 0.51 ulp; NaN for infinity."""
        return self._at(self._quarters)

    def cos(self) -> LaneValue:
        """Cosine: 0.51 ulp; NaN for infinity."""
        math = self._math
        return self._at(self._code.op("add", self._quarters, math.integer(1)))

    def _at(self, quarters: LaneValue) -> LaneValue:
        """Return the sine of r plus a number of quarter turns."""
        code, math, r = self._code, self._math, self._r
        square = math.mul(r, r)
        of_sine = math.mul(r, math.polynomial(square, _SIN))
        of_cosine = math.polynomial(square, _COS)
        odd = code.op("and", quarters, math.integer(1))
        is_odd = code.compare("ne", odd, math.integer(0))
        found = code.select(is_odd, of_cosine, of_sine)
        half_turn = code.op("and", quarters, math.integer(2))
        sign = code.op("shl", half_turn, math.integer(62))
        found = math.of_bits(code.op("xor", math.as_bits(found), sign))
        return code.convert("fptrunc", found, "float32")

    def _reduced(self) -> tuple[LaneValue, LaneValue]:
        """Return the number of quarter turns, whose last two bits matter, and the remainder."""
        code, math = self._code, self._math
        x = code.convert("fpext", self._x, "float64")
        shifted = math.fma(x, math.number(2 / pi), math.number(_ROUNDER))
        k = math.sub(shifted, math.number(_ROUNDER))
        r = math.fma(k, math.number(-_HALF_PI_HIGH), x)
        r = math.fma(k, math.number(-_HALF_PI_LOW), r)
        quarters, left = code.slot(math.as_bits(shifted)), code.slot(r)
        size = code.call("fabs", x)
        is_large = code.compare("oge", size, math.number(2.0**_LARGE_EXPONENT))
        is_finite = code.compare("olt", size, math.number(float("inf")))
        is_large = code.op("and", is_large, is_finite)
        with code.when(code.any_lane(is_large)):
            own_quarters, own_left = self._large()
            old = code.get(quarters, math.bits)
            code.set(quarters, code.select(is_large, own_quarters, old))
            old = code.get(left, math.kind)
            code.set(left, code.select(is_large, own_left, old))
        return code.get(quarters, math.bits), code.get(left, math.kind)

    def _large(self) -> tuple[LaneValue, LaneValue]:
        """Reduce large numbers in the same way; the result for others is undefined."""
        code, math = self._code, self._math
        bits = code.convert("bitcast", self._x, "int32")
        wide = code.convert("sext", bits, "int64")
        exponent = code.op("lshr", wide, math.integer(23))
        exponent = code.op("and", exponent, math.integer(0xFF))
        place = code.op("sub", exponent, math.integer(127 + _LARGE_EXPONENT))
        is_inside = code.compare("ult", place, math.integer(_EXPONENTS))
        place = code.select(is_inside, place, math.integer(0))
        mantissa = code.op("and", wide, math.integer(0x7FFFFF))
        mantissa = code.op("or", mantissa, math.integer(0x800000))
        code.declared[_TABLE] = _table_text()
        high, low = (
            code.gather_at(f"@{_TABLE}", math.bits, code.op("add", place, math.integer(start)))
            for start in (0, _EXPONENTS)
        )
        # A turn is 2 ** 64: whole turns are above the bits of the sum.
        low = code.op("lshr", code.op("mul", mantissa, low), math.integer(_LOW_BITS))
        turn = code.op("add", code.op("mul", mantissa, high), low)
        up = code.op("add", turn, math.integer(1 << 61))
        quarters = code.op("lshr", up, math.integer(62))
        less = code.op("sub", turn, code.op("shl", quarters, math.integer(62)))
        r = math.mul(code.convert("sitofp", less, "float64"), math.number(2 * pi / 2.0**64))
        is_negative = code.compare("slt", wide, math.integer(0))
        other = code.op("sub", math.integer(0), quarters)
        quarters = code.select(is_negative, other, quarters)
        return quarters, code.select(is_negative, code.make(math.kind, f"fneg {r}"), r)


@cache
def _table_text() -> str:
    """Return for each exponent the fraction of 2 ** (exponent - 23) / (2 pi): 64 bits, then 40
    more.
    """
    bits = 64 + _LOW_BITS
    pi_bits, words = _pi_bits(), []
    for exponent in range(_LARGE_EXPONENT - 23, _LARGE_EXPONENT - 23 + _EXPONENTS):
        words.append((1 << (exponent + bits + _PI_BITS - 1)) // pi_bits % (1 << bits))
    low = (1 << _LOW_BITS) - 1
    numbers = [*(word >> _LOW_BITS for word in words), *(word & low for word in words)]
    text = ", ".join(f"i64 {number}" for number in numbers)
    return f"@{_TABLE} = private unnamed_addr constant [{len(numbers)} x i64] [{text}], align 8"


def _pi_bits() -> int:
    """Return pi 2 ** 320, rounded down.

    Source: Machin 1706, pi = 16 arctan(1/5) - 4 arctan(1/239)
    """
    spare = 32
    one = 1 << (_PI_BITS + spare)
    return (16 * _inverse_tangent(5, one) - 4 * _inverse_tangent(239, one)) >> spare


def _inverse_tangent(n: int, one: int) -> int:
    """Return arctan(1/n), in units of 1/one."""
    term = total = one // n
    number = 1
    while term:
        term //= -n * n
        number += 2
        total += term // number
    return total
