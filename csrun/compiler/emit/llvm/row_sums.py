"""Reductions of the lanes of a vector to one number, in a fixed order of halving."""

from csrun.compiler.emit.llvm.code import Code, Kind, LaneValue
from csrun.compiler.emit.llvm.scalars import call_function


def add_lanes(code: Code, value: LaneValue) -> LaneValue:
    """Return the sum of the lanes: of 16, first lanes 0 + 8, 1 + 9 ..., then 0 + 4 ..."""
    return _folded(code, value, "add")


def largest_lane(code: Code, value: LaneValue) -> LaneValue:
    """Return the maximum of the lanes; NaN if any lane is."""
    return _folded(code, value, "maximum")


def _folded(code: Code, value: LaneValue, how: str) -> LaneValue:
    lanes = value.kind.lanes
    while lanes > 1:
        lanes //= 2
        halves = [_half(code, value, start, lanes) for start in (0, lanes)]
        value = call_function(code, how, halves)
    return value


def _half(code: Code, value: LaneValue, start: int, lanes: int) -> LaneValue:
    dtype = value.kind.dtype
    if lanes == 1:
        return code.make(Kind(dtype), f"extractelement {value}, i64 {start}")
    numbers = ", ".join(f"i32 {start + n}" for n in range(lanes))
    places = f"<{lanes} x i32> <{numbers}>"
    return code.make(Kind(dtype, lanes), f"shufflevector {value}, {value.kind.ir} poison, {places}")
