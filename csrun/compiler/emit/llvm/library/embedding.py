"""Machine code of lookups in a table or a shard of one, and of the table's gradient."""

from dataclasses import dataclass

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.library.library_function import (
    FIRST,
    LAST,
    LibraryFunction,
    Span,
    as_rows,
    each_vector,
    vectors_of,
)
from csrun.compiler.emit.llvm.loops.scalars import call_function, convert
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.graph.array import Array
from csrun.compiler.kernels.embedding import Lookup, LookupBackward
from csrun.compiler.kernels.vocab_shards import LookupPart, LookupPartBackward

FEW_ROWS = 256  # rows of a table that threads share by columns
COLUMNS = 2  # vectors of columns that stay together: a cache line that two threads would write
#: Maximum number of shares of a larger table: each share reads all indices.
SHARES = 64


def lookup_code(kernel: Lookup, name: str) -> KernelCode | None:
    """Return machine code over the indices, which were checked before."""
    table, out = as_rows(kernel.weight), as_rows(kernel.out)
    if table is None or out is None:
        return None
    function = LibraryFunction((table, kernel.indices, out))
    code = function.code
    with code.loop(FIRST, LAST) as row:
        number = _index(function, row)
        number = call_function(code, "maximum", [number, index(0)])
        number = call_function(code, "minimum", [number, index(table.shape[0] - 1)])
        _copy(code, out, function.row(0, number), function.row(2, row))
    return function.finished(name, out.shape[0])


def lookup_part_code(kernel: LookupPart, name: str) -> KernelCode | None:
    """Return machine code over the indices: rows of indices outside of the shard are copied, or
    0.
    """
    table, out = as_rows(kernel.weight), as_rows(kernel.out)
    before = out if kernel.before is None else as_rows(kernel.before)
    if table is None or out is None or before is None:
        return None
    function = LibraryFunction((table, kernel.indices, out, before))
    code, count = function.code, index(table.shape[0])
    with code.loop(FIRST, LAST) as row:
        key = code.op("sub", _index(function, row), index(kernel.first))
        with code.when(code.compare("ult", key, count)):
            _copy(code, out, function.row(0, key), function.row(2, row))
        with code.when(code.compare("uge", key, count)):
            if kernel.before is None:
                _clear(code, out, function.row(2, row))
            elif before != out:
                _copy(code, out, function.row(3, row), function.row(2, row))
    return function.finished(name, out.shape[0])


def lookup_backward_code(
    kernel: LookupBackward | LookupPartBackward, name: str
) -> KernelCode | None:
    """Return machine code over rows of the table or, if these are few, vectors of its columns.

    Each sum adds its positions in order, for any number of shares.
    """
    grad, out = as_rows(kernel.grad), as_rows(kernel.out)
    if grad is None or out is None:
        return None
    function = LibraryFunction((grad, kernel.indices, out))
    count, size = out.shape
    vectors = vectors_of(size)
    first = kernel.first if isinstance(kernel, LookupPartBackward) else 0
    if count < FEW_ROWS:
        scatter = _GradientWriter(function, kernel, first, (index(0), index(count)), (FIRST, LAST))
        scatter.write()
        return function.finished(name, vectors, COLUMNS)
    scatter = _GradientWriter(function, kernel, first, (FIRST, LAST), (index(0), index(vectors)))
    scatter.write()
    return function.finished(name, count, -(-count // SHARES))


@dataclass(frozen=True)
class _GradientWriter:
    """Sums of the gradients of some rows of the table, and of some vectors of columns.

    parameters: gradients, indices, the table's gradient.
    first: index of the table's row 0.
    """

    function: LibraryFunction
    kernel: LookupBackward
    first: int
    rows: Span
    vectors: Span

    @property
    def out(self) -> Array:
        return self.function.parameters[2]

    def write(self) -> None:
        """Clear the rows, unless they are accumulated; add gradients in the order of positions."""
        code, indices = self.function.code, self.kernel.indices
        if not self.kernel.adds:
            with code.loop(*self.rows) as row:
                _clear(code, self.out, self.function.row(2, row), *self.vectors)
        (count,) = indices.shape
        full = count - count % LANES if indices.strides == (1,) else 0
        with code.loop(index(0), index(full), LANES) as at:
            keys = code.load(self.function.row(1, at), Kind(indices.dtype, LANES))
            found = self._is_inside(convert(code, keys, "int64"))
            with code.when(code.any_lane(found)):
                self._add(at, code.op("add", at, index(LANES)))
        self._add(index(full), index(count))

    def _add(self, first: LaneValue, last: LaneValue) -> None:
        """Add the gradients of these positions."""
        code = self.function.code
        with code.loop(first, last) as position:
            number = _index(self.function, position)
            with code.when(self._is_inside(number)):
                row = code.op("sub", number, index(self.first))
                self._add_row(position, row)

    def _is_inside(self, numbers: LaneValue) -> LaneValue:
        """Return whether indices are among these rows and not the padding index."""
        code, lanes, (first, last) = self.function.code, numbers.kind.lanes, self.rows
        start = code.op("add", first, index(self.first))
        count = code.op("sub", last, first)
        above = code.op("sub", numbers, code.splat(start, lanes))
        inside = code.compare("ult", above, code.splat(count, lanes))
        if self.kernel.padding < 0:
            return inside
        padding = code.constant(self.kernel.padding, numbers.kind)
        return code.op("and", inside, code.compare("ne", numbers, padding))

    def _add_row(self, position: LaneValue, row: LaneValue) -> None:
        code, kind = self.function.code, Kind(self.out.dtype, LANES)
        source, target = self.function.row(0, position), self.function.row(2, row)

        def write(at: LaneValue, mask: LaneValue | None) -> None:
            place = code.offset(target, kind.dtype, at)
            more = code.load(code.offset(source, kind.dtype, at), kind, mask)
            total = call_function(code, "add", [code.load(place, kind, mask), more])
            code.store(total, place, mask)

        each_vector(code, self.out.shape[1], write, *self.vectors)


def _index(function: LibraryFunction, position: LaneValue) -> LaneValue:
    """Return the index at a position, from parameter 1."""
    kind = Kind(function.parameters[1].dtype)
    return convert(function.code, function.code.load(function.row(1, position), kind), "int64")


def _copy(code: Code, like: Array, source: str, target: str) -> None:
    """Copy a row."""
    kind = Kind(like.dtype, LANES)

    def write(at: LaneValue, mask: LaneValue | None) -> None:
        value = code.load(code.offset(source, kind.dtype, at), kind, mask)
        code.store(value, code.offset(target, kind.dtype, at), mask)

    each_vector(code, like.shape[1], write)


def _clear(code: Code, like: Array, target: str, *vectors: LaneValue) -> None:
    """Set a row, or some of its vectors, to zero."""
    zeros = code.constant(0, Kind(like.dtype, LANES))

    def write(at: LaneValue, mask: LaneValue | None) -> None:
        code.store(zeros, code.offset(target, like.dtype, at), mask)

    each_vector(code, like.shape[1], write, *vectors)
