"""Powers of float32 lanes, computed in float64: 2 ** (y log2(|x|)).

Source: C99, annex F.9.4.4, for zeros, infinities and NaN
"""

from math import factorial, log

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_functions.lane_math import LaneMath
from csrun.compiler.emit.llvm.lane_values import LaneValue

_ROUNDER = 1.5 * 2.0**52  # adding it rounds a number to an integer
_EXP2 = tuple(log(2) ** n / factorial(n) for n in range(9, -1, -1))
#: 2 artanh(s) / (s ln 2) in s s.
_LOG2 = tuple(2 / (log(2) * (2 * n + 1)) for n in range(7, -1, -1))
_ROOT = 0x3FE6A09E667F3BCD  # the bits of sqrt(1/2)
_MANTISSA = (1 << 52) - 1
_MOST = 400.0  # exponents of 2 beyond float32's range


class Exponentiation:
    """x ** y: 0.51 ulp."""

    def __init__(self, code: Code, x: LaneValue, y: LaneValue) -> None:
        self._code = code
        self._x, self._y = (code.convert("fpext", value, "float64") for value in (x, y))
        self._math = LaneMath(code, self._x.kind)

    def value(self) -> LaneValue:
        """Return the power."""
        code, math, x, y = self._code, self._math, self._x, self._y
        exponent = math.mul(y, self._log2(code.call("fabs", x)))
        exponent = code.select(self._is_one(), math.number(0.0), exponent)
        power = self._exp2(math.at_most(math.at_least(exponent, -_MOST), _MOST))
        whole = code.compare("oeq", code.call("trunc", y), y)
        half = math.mul(y, math.number(0.5))
        is_odd = code.op("and", whole, code.compare("une", code.call("trunc", half), half))
        sign = code.op("and", math.as_bits(x), math.integer(-1 << 63))
        signed = math.of_bits(code.op("or", math.as_bits(power), sign))
        power = code.select(is_odd, signed, power)
        is_negative = code.compare("olt", x, math.number(0.0))
        is_finite = code.compare("ogt", x, math.number(float("-inf")))
        is_root = code.compare("une", code.call("trunc", y), y)
        has_none = code.op("and", code.op("and", is_negative, is_finite), is_root)
        power = code.select(has_none, math.number(float("nan")), power)
        return code.convert("fptrunc", power, "float32")

    def _is_one(self) -> LaneValue:
        """Return the lanes in which |x| ** y is 1 for any other operand."""
        code, math, x, y = self._code, self._math, self._x, self._y
        is_number = code.compare("ord", y, y)
        is_minus_one = code.compare("oeq", x, math.number(-1.0))
        found = code.op("and", is_minus_one, is_number)
        found = code.op("or", found, code.compare("oeq", x, math.number(1.0)))
        return code.op("or", found, code.compare("oeq", y, math.number(0.0)))

    def _log2(self, x: LaneValue) -> LaneValue:
        """Return the base-2 logarithm of a non-negative number; -infinity for 0."""
        code, math = self._code, self._math
        above = code.op("sub", math.as_bits(x), math.integer(_ROOT))
        exponent = code.op("ashr", above, math.integer(52))
        mantissa = code.op("and", above, math.integer(_MANTISSA))
        m = math.of_bits(code.op("add", mantissa, math.integer(_ROOT)))
        one = math.number(1.0)
        s = code.op("fdiv", math.sub(m, one), math.add(m, one))
        square = math.mul(s, s)
        narrow = code.convert("trunc", exponent, "int32")
        e = code.convert("sitofp", narrow, "float64")
        found = math.fma(s, math.polynomial(square, _LOG2), e)
        infinity = math.number(float("inf"))
        found = code.select(code.compare("olt", x, infinity), found, x)
        is_zero = code.compare("oeq", x, math.number(0.0))
        return code.select(is_zero, math.number(float("-inf")), found)

    def _exp2(self, x: LaneValue) -> LaneValue:
        """Return 2 ** x, for x below 2 ** 10."""
        code, math = self._code, self._math
        shifted = math.add(x, math.number(_ROUNDER))
        f = math.sub(x, math.sub(shifted, math.number(_ROUNDER)))
        biased = code.op("add", math.as_bits(shifted), math.integer(1023))
        scale = math.of_bits(code.op("shl", biased, math.integer(52)))
        return math.mul(math.polynomial(f, _EXP2), scale)
