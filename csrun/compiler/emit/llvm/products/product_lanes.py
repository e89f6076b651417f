"""Lanes of packed panels, of 32 bits: a float32 number, or a pair of bfloat16 numbers.

A pair has a number in its upper half and the next one along k in the lower half, zero at the end.

"""

from csrun.base.half_formats import WORD, HalfFormat
from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_functions.half import widen_half
from csrun.compiler.emit.llvm.lane_values import Kind, LaneValue

_WORD_BITS = 16
_UPPER = -(1 << _WORD_BITS)


class LaneReader:
    """Reader of lanes from a matrix of float32 or of 16-bit words; lanes have the type float32.

    numbers: numbers per lane, 1 or 2; pairs consist of bfloat16 numbers.
    """

    def __init__(self, code: Code, numbers: int, half: HalfFormat | None) -> None:
        self._code, self._numbers, self._half = code, numbers, half
        self._dtype = "float32" if half is None else WORD

    def across(
        self, places: tuple[str, ...], kind: Kind, mask: LaneValue | None = None
    ) -> LaneValue:
        """Return lanes of consecutive columns; places: addresses of the existing rows."""
        code = self._code
        found = [code.load(place, kind.of(self._dtype), mask) for place in places]
        if self._numbers == 1:
            return found[0] if self._half is None else widen_half(code, self._half, found[0])
        return self.paired(*found)

    def paired(self, first: LaneValue, second: LaneValue | None = None) -> LaneValue:
        """Return lanes of pairs from vectors of their numbers."""
        bits = self._upper(first)
        if second is not None:
            bits = self._code.op("or", bits, self._lower(second))
        return self._code.convert("bitcast", bits, "float32")

    def _upper(self, number: LaneValue) -> LaneValue:
        code, integers = self._code, number.kind.of("int32")
        if self._half is None:
            bits = code.convert("bitcast", number, "int32")
            return code.op("and", bits, code.constant(_UPPER, integers))
        word = code.convert("zext", number, "int32")
        return code.op("shl", word, code.constant(_WORD_BITS, integers))

    def _lower(self, number: LaneValue) -> LaneValue:
        code, integers = self._code, number.kind.of("int32")
        if self._half is not None:
            return code.convert("zext", number, "int32")
        bits = code.convert("bitcast", number, "int32")
        return code.op("lshr", bits, code.constant(_WORD_BITS, integers))

    def along(self, place: str, lanes: int, count: LaneValue | None = None) -> LaneValue:
        """Return lanes of numbers along k from an address on, or the first `count` lanes."""
        code = self._code
        if self._numbers == 1:
            return self.across((place,), Kind("float32", lanes))
        kind = Kind("int32" if self._half is not None else "int64", lanes)
        # Little-endian: the first number is in the lower half of the loaded word.
        if count is None:
            both = code.load(place, kind)
        else:
            mask = code.mask(count, 2 * lanes)
            numbers = code.load(place, Kind(self._dtype, 2 * lanes), mask)
            both = code.make(kind, f"bitcast {numbers} to {kind.ir}")
        if self._half is None:
            first = code.op("and", both, code.constant(0xFFFFFFFF & _UPPER, kind))
            second = code.op("lshr", both, code.constant(3 * _WORD_BITS, kind))
            bits = code.convert("trunc", code.op("or", first, second), "int32")
        else:
            bits = code.call("fshl", both, both, code.constant(_WORD_BITS, kind))
        return code.convert("bitcast", bits, "float32")
