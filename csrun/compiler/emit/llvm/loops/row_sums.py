"""Sums and maxima along a row: of vectors, and of the lanes of a vector, in a fixed order."""

from collections.abc import Callable
from functools import partial
from math import nan

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue
from csrun.compiler.emit.llvm.loops.members import LoopNest
from csrun.compiler.emit.llvm.loops.nests import least_of, rows_read
from csrun.compiler.emit.llvm.loops.scalars import call_function
from csrun.compiler.lair import operators

_PARALLEL = 4  # partial sums: an addition has a latency of three or four cycles
#: Functions that take no longer than an addition.
_SHORT = frozenset({"add", "subtract", "multiply", "square", operators.IDENTITY, operators.LARGEST})


class RowReduction:
    """Sum or maximum of the vectors of a row, in one or several partial results.

    A maximum is NaN if any number is; a CPU's instruction drops NaN, so they are found separately.
    """

    def __init__(self, code: Code, kind: Kind, is_largest: bool, count: int) -> None:
        self._code, self._kind, self._is_largest = code, kind, is_largest
        first = code.constant(least_of(kind) if is_largest else 0, kind)
        self._slots = [code.slot(first) for _ in range(count)]
        self._has_nan = is_largest and kind.is_float
        if self._has_nan:
            self._nan = code.slot(code.constant(0, kind.of("bool")))

    def add(self, value: LaneValue, mask: LaneValue | None, part: int) -> None:
        """Add a vector to partial result `part`; mask: lanes to include."""
        code, slot = self._code, self._slots[part]
        old = code.get(slot, self._kind)
        found = self._combine(old, value)
        code.set(slot, found if mask is None else code.select(mask, found, old))
        if self._has_nan:
            is_nan = code.compare("uno", value, value)
            is_nan = is_nan if mask is None else code.op("and", is_nan, mask)
            code.set(self._nan, code.op("or", code.get(self._nan, is_nan.kind), is_nan))

    def result(self) -> LaneValue:
        """Return the number: partial results in pairs, then lanes in halves."""
        code = self._code
        found = [code.get(slot, self._kind) for slot in self._slots]
        while len(found) > 1:
            found = [self._combine(*found[n : n + 2]) for n in range(0, len(found), 2)]
        number = _fold_lanes(code, found[0], self._combine)
        if not self._has_nan:
            return number
        is_nan = code.any_lane(code.get(self._nan, self._kind.of("bool")))
        return code.select(is_nan, code.constant(nan, number.kind), number)

    def _combine(self, x: LaneValue, y: LaneValue) -> LaneValue:
        return (_larger if self._is_largest else _sum)(self._code, x, y)


def parallel_sums(stage: LoopNest, size: int) -> int:
    """Return the number of partial sums of a nest, which hide the latency of additions.

    size: length of its last axis. Nests that read several arrays are limited by memory, and have
    one.
    """
    waits = stage.reduced and all(m.function in _SHORT for m in stage.members)
    waits = waits and len(rows_read([stage])) == 1
    return _PARALLEL if waits and size >= _PARALLEL * LANES else 1


def reductions_of(code: Code, stage: LoopNest, size: int) -> dict[int, RowReduction]:
    """Return the sums and maxima of a nest, by the operator's id."""
    lanes, count = 1 if size == 1 else LANES, parallel_sums(stage, size)
    return {
        id(m): RowReduction(code, Kind(m.out_dtype, lanes), m.function == operators.LARGEST, count)
        for m in stage.members
        if m.reduced
    }


def add_lanes(code: Code, value: LaneValue) -> LaneValue:
    """Return the sum of the lanes: of 16, first lanes 0 + 8, 1 + 9 ..., then 0 + 4 ..."""
    return _fold_lanes(code, value, partial(_sum, code))


def largest_lane(code: Code, value: LaneValue) -> LaneValue:
    """Return the maximum of the lanes; NaN among them may be dropped."""
    return _fold_lanes(code, value, partial(_larger, code))


def _sum(code: Code, x: LaneValue, y: LaneValue) -> LaneValue:
    return call_function(code, "add", [x, y])


def _larger(code: Code, x: LaneValue, y: LaneValue) -> LaneValue:
    return code.select(code.compare("ogt" if x.kind.is_float else "sgt", x, y), x, y)


def _fold_lanes(
    code: Code, value: LaneValue, combine: Callable[[LaneValue, LaneValue], LaneValue]
) -> LaneValue:
    lanes = value.kind.lanes
    while lanes > 1:
        lanes //= 2
        value = combine(*(_half(code, value, start, lanes) for start in (0, lanes)))
    return value


def _half(code: Code, value: LaneValue, start: int, lanes: int) -> LaneValue:
    dtype = value.kind.dtype
    if lanes == 1:
        return code.make(Kind(dtype), f"extractelement {value}, i64 {start}")
    numbers = ", ".join(f"i32 {start + n}" for n in range(lanes))
    places = f"<{lanes} x i32> <{numbers}>"
    return code.make(Kind(dtype, lanes), f"shufflevector {value}, {value.kind.ir} poison, {places}")
