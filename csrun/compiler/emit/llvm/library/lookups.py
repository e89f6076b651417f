"""Machine code of gather and index_select, and of their gradients.

Arrays have three axes: those before the indexed axis, this axis, and those after it. Each sum adds
its positions in order, as in NumPy, for any split over threads.
"""

from dataclasses import dataclass
from math import prod

from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.library.embedding import lookup_backward_code
from csrun.compiler.emit.llvm.library.library_function import (
    FIRST,
    LAST,
    ZERO,
    LibraryFunction,
    Span,
    each_vector,
)
from csrun.compiler.emit.llvm.loops.scalars import call_function, convert
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.emit.llvm.products.matrices import times
from csrun.compiler.graph.array import Array
from csrun.compiler.kernels.embedding import LookupBackward
from csrun.compiler.kernels.indexing import Indexing

LEAST_VECTOR = 8  # numbers after the axis from which vectors pay
COLUMNS = 16  # columns of a gradient that stay together: a cache line that two threads would write


def indexing_code(kernel: Indexing, name: str) -> KernelCode | None:
    """Return machine code of a lookup or its gradient; None if an array does not have three
    axes.
    """
    of_each = kernel.function.startswith("gather")
    x, out = kernel.x, kernel.out
    if of_each and kernel.is_gradient and x.shape != _shape_at(out, kernel):
        return None
    if of_each and not kernel.is_gradient:
        x = _part(x, kernel)
    looked_up, indices = _three_axes(x, kernel.dim), kernel.indices
    result = _three_axes(out, kernel.dim)
    own = _three_axes(indices, kernel.dim) if of_each else indices
    if looked_up is None or result is None or own is None:
        return None
    if not of_each and kernel.is_gradient and result.shape[0] == 1:
        code = _table_code(kernel, looked_up, result, name)
        if code is not None:
            return code
    size = (result if kernel.is_gradient else looked_up).shape[1]
    writer = _LookupWriter(LibraryFunction((looked_up, own, result)), of_each, size)
    rows, cut = writer.write_gradient() if kernel.is_gradient else writer.write()
    return writer.function.finished(name, rows, cut)


def _shape_at(array: Array, kernel: Indexing) -> tuple[int, ...]:
    """Return the shape with as many positions on the axis as there are indices."""
    sizes = list(array.shape)
    sizes[kernel.dim] = kernel.indices.shape[kernel.dim]
    return tuple(sizes)


def _part(x: Array, kernel: Indexing) -> Array:
    """Return the part that is looked up in, cut to the indices' size on the other axes."""
    for d, size in enumerate(kernel.indices.shape):
        if d != kernel.dim:
            x = x.sliced(d, 0, size)
    return x


def _three_axes(array: Array, dim: int) -> Array | None:
    shape = array.shape
    return array.reshaped((prod(shape[:dim]), shape[dim], prod(shape[dim + 1 :])))


def _table_code(kernel: Indexing, grad: Array, out: Array, name: str) -> KernelCode | None:
    """Return machine code of the gradient of a table whose rows are looked up."""
    rows = grad.selected(0, 0), kernel.indices, out.selected(0, 0)
    return lookup_backward_code(LookupBackward(kernel.layer, *rows, padding=-1), name)


@dataclass(frozen=True)
class _LookupWriter:
    """Writes the function. Parameters: the table or a gradient, indices, the result.

    of_each: whether each element has an index, instead of each position of the axis.
    size: length of the axis.
    """

    function: LibraryFunction
    of_each: bool
    size: int

    def write(self) -> tuple[int, int]:
        """Write loops over all positions, or over the axes before; return rows, and how they are
        split.
        """
        code, (before, count, after) = self.function.code, self._result.shape
        if after == 1 and before > 1:
            with code.loop(FIRST, LAST) as outer, code.loop(ZERO, index(count)) as position:
                self._lookup(outer, position)
            return before, 1
        with code.loop(FIRST, LAST) as row:
            outer = code.op("udiv", row, index(count))
            self._lookup(outer, code.op("urem", row, index(count)))
        return before * count, 1

    def write_gradient(self) -> tuple[int, int]:
        """Write zeros, then add gradients; with a single row before the axis, by columns after
        it.
        """
        code, (before, _, after) = self.function.code, self._result.shape
        if before == 1:
            self._add_up(ZERO, (FIRST, LAST))
            return after, COLUMNS
        with code.loop(FIRST, LAST) as outer:
            self._add_up(outer, (ZERO, index(after)))
        return before, 1

    @property
    def _result(self) -> Array:
        return self.function.parameters[2]

    def _lookup(self, outer: LaneValue, position: LaneValue) -> None:
        """Copy the numbers at one position."""
        code, after = self.function.code, self._result.shape[2]
        if self.of_each:
            with code.loop(ZERO, index(after)) as column:
                place = self._place_of(outer, position, column)
                source = self._address(0, outer, place, column)
                value = code.load(source, Kind(self._result.dtype))
                code.store(value, self._address(2, outer, position, column))
            return
        place = self._place_of(outer, position, ZERO)
        source, target = self._address(0, outer, place), self._address(2, outer, position)
        self._each_column(source, target, (ZERO, index(after)))

    def _add_up(self, outer: LaneValue, columns: Span) -> None:
        """Add some columns, in the order of positions."""
        code, count = self.function.code, self.function.parameters[0].shape[1]
        kind = Kind(self._result.dtype)
        with code.loop(ZERO, index(self.size)) as place, code.loop(*columns) as column:
            code.store(code.constant(0, kind), self._address(2, outer, place, column))
        with code.loop(ZERO, index(count)) as position:
            if self.of_each:
                with code.loop(*columns) as column:
                    place = self._place_of(outer, position, column)
                    target = self._address(2, outer, place, column)
                    more = code.load(self._address(0, outer, position, column), kind)
                    total = call_function(code, "add", [code.load(target, kind), more])
                    code.store(total, target)
            else:
                place = self._place_of(outer, position, ZERO)
                source, target = self._address(0, outer, position), self._address(2, outer, place)
                self._each_column(source, target, columns, adds=True)

    def _each_column(self, source: str, target: str, columns: Span, adds: bool = False) -> None:
        """Copy or add columns after the axis, starting at a whole vector."""
        code, arrays = self.function.code, (self.function.parameters[0], self._result)
        after, strides = self._result.shape[2], [array.strides[2] for array in arrays]
        is_dense = strides == [1, 1] and after >= LEAST_VECTOR
        kind = Kind(self._result.dtype, LANES if is_dense else 1)

        def write(at: LaneValue, mask: LaneValue | None) -> None:
            places = [
                code.offset(pointer, kind.dtype, times(code, at, stride))
                for pointer, stride in zip((source, target), strides, strict=True)
            ]
            value = code.load(places[0], kind, mask)
            if adds:
                value = call_function(code, "add", [code.load(places[1], kind, mask), value])
            code.store(value, places[1], mask)

        if is_dense:
            ends = (code.op("add", column, index(LANES - 1)) for column in columns)
            first, last = (code.op("udiv", end, index(LANES)) for end in ends)
            each_vector(code, after, write, first, last)
        else:
            with code.loop(*columns) as at:
                write(at, None)

    def _place_of(self, *places: LaneValue) -> LaneValue:
        """Return the index at a position, clamped to the axis."""
        code, indices = self.function.code, self.function.parameters[1]
        given = places if self.of_each else places[1:2]
        found = code.load(self._address(1, *given), Kind(indices.dtype))
        found = call_function(code, "maximum", [convert(code, found, "int64"), ZERO])
        return call_function(code, "minimum", [found, index(self.size - 1)])

    def _address(self, parameter: int, *places: LaneValue) -> str:
        """Return the address of an element, or of the first one on omitted axes."""
        code, array = self.function.code, self.function.parameters[parameter]
        pointer = self.function.pointers[parameter]
        for place, stride in zip(places, array.strides, strict=False):
            pointer = code.offset(pointer, array.dtype, times(code, place, stride))
        return pointer
