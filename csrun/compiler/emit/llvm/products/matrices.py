"""Matrices in memory: vectors of their rows, and their sizes."""

from collections.abc import Callable
from dataclasses import dataclass

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index

FLOAT, FLOATS = Kind("float32"), Kind("float32", LANES)
#: Loads elements of a vector from a position on; lanes outside of the mask are undefined.
VectorBody = Callable[[LaneValue, LaneValue | None], None]


@dataclass(frozen=True)
class Matrix:
    """Address of a matrix's first element, and its strides in elements."""

    pointer: str
    row: int
    column: int = 1
    dtype: str = "float32"

    def at(self, code: Code, row: LaneValue, column: LaneValue | None = None) -> "Matrix":
        """Return the matrix that begins at another row and column."""
        pointer = code.offset(self.pointer, self.dtype, times(code, row, self.row))
        if column is not None:
            pointer = code.offset(pointer, self.dtype, times(code, column, self.column))
        return Matrix(pointer, self.row, self.column, self.dtype)

    @property
    def transposed(self) -> "Matrix":
        return Matrix(self.pointer, self.column, self.row, self.dtype)

    def load(self, code: Code, at: LaneValue, mask: LaneValue | None) -> LaneValue:
        """Load elements of the first row, from `at` on."""
        kind = Kind(self.dtype, LANES)
        if not self.column:
            return code.splat(code.load(self.pointer, Kind(self.dtype)), LANES)
        place = code.offset(self.pointer, self.dtype, times(code, at, self.column))
        if self.column == 1:
            return code.load(place, kind, mask)
        return code.gather(place, kind, self.column, mask)

    def store(self, code: Code, value: LaneValue, at: LaneValue, mask: LaneValue | None) -> None:
        """Store elements of the first row, from `at` on."""
        place = code.offset(self.pointer, self.dtype, times(code, at, self.column))
        if self.column == 1:
            code.store(value, place, mask)
        else:
            code.scatter(value, place, self.column, mask)


def times(code: Code, number: LaneValue, factor: int) -> LaneValue:
    """Multiply a number of elements, rows or bytes."""
    if factor == 1 or number.text == "0":
        return number
    return code.op("mul", number, index(factor))


def smaller(code: Code, x: LaneValue, y: LaneValue) -> LaneValue:
    """Return the smaller of two counts."""
    return code.call("smin", x, y)


def padded(count: int) -> int:
    """Round up to whole vectors."""
    return -(-count // LANES) * LANES


def each_vector(code: Code, count: LaneValue, body: VectorBody) -> None:
    """Write instructions for the full vectors of a row, and for the rest."""
    full = code.op("and", count, index(-LANES))
    with code.loop(index(0), full, LANES) as at:
        body(at, None)
    rest = code.op("and", count, index(LANES - 1))
    with code.when(code.compare("sgt", rest, index(0))):
        lanes = code.lane_numbers()
        body(full, code.compare("slt", lanes, code.splat(rest, LANES)))
