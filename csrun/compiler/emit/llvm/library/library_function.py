"""Functions written instruction by instruction: arguments, rows, vectors of a row."""

from collections.abc import Callable, Sequence
from math import prod

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import INDEX, LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.loops.nests import argument
from csrun.compiler.emit.llvm.module import KernelCode, function_text
from csrun.compiler.graph.array import Array, contiguous

FIRST, LAST = LaneValue("%first", INDEX), LaneValue("%last", INDEX)
ZERO = index(0)
Span = tuple[LaneValue, LaneValue]  # the first row, and the end


class LibraryFunction:
    """Instructions of a function, with the addresses of its parameters and its numbers.

    pointers: addresses of the parameters, then of the constants.
    """

    def __init__(
        self,
        parameters: Sequence[Array],
        numbers: Sequence[str] = (),
        constants: Sequence[str] = (),
    ) -> None:
        self.code = Code()
        self.parameters = tuple(parameters)
        self._numbers = tuple(numbers)
        self._constants = tuple(constants)
        count = len(parameters) + len(constants)
        self.pointers = [argument(self.code, n) for n in range(count)]

    def number(self, text: str) -> LaneValue:
        """Return a number of the call."""
        numbers = argument(self.code, len(self.pointers))
        place = self.code.offset(numbers, "float64", index(self._numbers.index(text)))
        return self.code.load(place, Kind("float64"))

    def integer(self, text: str) -> LaneValue:
        """Return a number of the call that is a count, or a 32-bit word."""
        return self.code.convert("fptoui", self.number(text), "int64")

    def row(self, parameter: int, row: LaneValue) -> str:
        """Return the address of a row of a parameter."""
        array = self.parameters[parameter]
        elements = self.code.op("mul", row, index(array.strides[0]))
        return self.code.offset(self.pointers[parameter], array.dtype, elements)

    def finished(self, name: str, rows: int, cut: int = 1) -> KernelCode:
        """Return the machine code."""
        lines = ["entry:", *self.code.entry, *self.code.lines, "  ret void"]
        text = function_text(name, "ptr %arguments, i64 %first, i64 %last", lines)
        return KernelCode(
            name,
            text,
            self.code.declared,
            self.parameters,
            self._numbers,
            scratch_bytes=0,
            parts_bytes=0,
            cut=cut,
            has_epilogue=False,
            rows=rows,
            constants=self._constants,
        )


def vectors_of(size: int) -> int:
    """Return the number of vectors of a row."""
    return -(-size // LANES)


def each_vector(
    code: Code,
    size: int,
    write: Callable[[LaneValue, LaneValue | None], None],
    first: LaneValue = ZERO,
    last: LaneValue | None = None,
) -> None:
    """Write instructions for a range of a row's vectors, by position; the last one has a mask.

    size: length of the row.
    """
    full = index(size // LANES)
    last = index(vectors_of(size)) if last is None else last
    is_before = code.compare("slt", last, full)
    end = code.op("mul", code.select(is_before, last, full), index(LANES))
    with code.loop(code.op("mul", first, index(LANES)), end, LANES) as at:
        write(at, None)
    if size % LANES:
        with code.when(code.compare("sgt", last, full)):
            write(index(size - size % LANES), code.first_lanes(size % LANES))


def as_rows(array: Array) -> Array | None:
    """View [N, ...] as [N, D], if its rows are contiguous."""
    shape = array.shape[1:]
    if array.strides[1:] != contiguous(shape):
        return None
    return array.reshaped((array.shape[0], prod(shape)))
