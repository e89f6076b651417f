"""Arithmetic on lanes of one float type, with constants of that type."""

from collections.abc import Sequence

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import BITS_OF, Kind, LaneValue


class LaneMath:
    """Instructions for one float type.

    bits: integer type of the same size.
    """

    def __init__(self, code: Code, kind: Kind) -> None:
        self.code = code
        self.kind = kind
        self.bits = kind.of(BITS_OF[kind.dtype])

    def number(self, number: float) -> LaneValue:
        return self.code.constant(number, self.kind)

    def integer(self, number: int) -> LaneValue:
        return self.code.constant(number, self.bits)

    def add(self, x: LaneValue, y: LaneValue) -> LaneValue:
        return self.code.op("fadd", x, y)

    def sub(self, x: LaneValue, y: LaneValue) -> LaneValue:
        return self.code.op("fsub", x, y)

    def mul(self, x: LaneValue, y: LaneValue) -> LaneValue:
        return self.code.op("fmul", x, y)

    def fma(self, x: LaneValue, y: LaneValue, z: LaneValue) -> LaneValue:
        return self.code.call("fma", x, y, z)

    def polynomial(self, x: LaneValue, coefficients: Sequence[float]) -> LaneValue:
        """Evaluate a polynomial by Horner's rule; coefficients by falling power."""
        found = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            found = self.fma(found, x, self.number(coefficient))
        return found

    def at_least(self, x: LaneValue, bound: float) -> LaneValue:
        """Return the maximum of a value and a bound; NaN is preserved."""
        is_less = self.code.compare("olt", x, self.number(bound))
        return self.code.select(is_less, self.number(bound), x)

    def at_most(self, x: LaneValue, bound: float) -> LaneValue:
        """Return the minimum of a value and a bound; NaN is preserved."""
        is_more = self.code.compare("ogt", x, self.number(bound))
        return self.code.select(is_more, self.number(bound), x)

    def as_bits(self, x: LaneValue) -> LaneValue:
        return self.code.convert("bitcast", x, self.bits.dtype)

    def of_bits(self, bits: LaneValue) -> LaneValue:
        return self.code.convert("bitcast", bits, self.kind.dtype)
