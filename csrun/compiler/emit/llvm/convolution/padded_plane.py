"""Rows of an image with padding in scratch, so that windows never reach outside.

The pixels of consecutive windows are made adjacent: with a stride of s columns a row has s parts,
one after the other, each with every s-th column of the image.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from csrun.cirh.ops.convolution import Windows
from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.convolution.convolution_sizes import Pair
from csrun.compiler.emit.llvm.convolution.pieces import each_piece
from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.products.matrices import FLOATS, Matrix, padded, times
from csrun.compiler.emit.llvm.products.packed_products import ThreadScratch

# strides up to which several vectors of the image are loaded and shuffled
_WIDE, _MOST_STRIDE = 8, 4


@dataclass(frozen=True)
class _Part:
    """Columns of a part of a row, before `end`, that are columns of the image.

    image: column of the image that is column 0 of the part; may be padding.
    """

    number: int
    first: int
    end: int
    image: int


class PaddedPlane:
    """Memory for the image rows read by a number of rows of windows."""

    def __init__(
        self, code: Code, scratch: ThreadScratch, image: Pair, windows: Windows, places: Pair
    ) -> None:
        self._code = code
        self._image = image
        self._windows = w = windows
        last = (w.size[1] - 1) * w.dilation[1]
        self._seen = (places[1] - 1) * w.stride[1] + last + 1  # columns, with padding
        # Vectors may extend beyond the last window.
        self._part = padded(places[1] + last // w.stride[1]) + LANES
        self._pitch = self._part * w.stride[1]
        self._more_rows = (w.size[0] - 1) * w.dilation[0] + 1 - w.stride[0]
        self._floats = self._pitch * (places[0] * w.stride[0] + self._more_rows)
        self._pointer = scratch.take(4 * self._floats)

    @property
    def row_step(self) -> int:
        """Elements from the pixels of a window to those of the window below it."""
        return self._windows.stride[0] * self._pitch

    def tap(self, i: LaneValue, j: LaneValue) -> str:
        """Return the address of a pixel, by row and column, of the first window."""
        code, stride = self._code, index(self._windows.stride[1])
        column = times(code, j, self._windows.dilation[1])
        part = times(code, code.op("urem", column, stride), self._part)
        place = code.op("add", part, code.op("udiv", column, stride))
        row = times(code, i, self._windows.dilation[0] * self._pitch)
        return code.offset(self._pointer, "float32", code.op("add", row, place))

    def fixed_tap(self, i: int, j: int) -> str:
        """Return the address as `tap`, for a pixel known at code generation."""
        place, part = divmod(j * self._windows.dilation[1], self._windows.stride[1])
        row = i * self._windows.dilation[0] * self._pitch
        return self._code.offset(self._pointer, "float32", index(row + part * self._part + place))

    def clear(self) -> None:
        """Set all to zero."""
        clear_floats(self._code, self._pointer, self._floats)

    def read(self, image: Matrix, window_row: LaneValue, window_rows: LaneValue) -> None:
        """Copy the rows read by windows; the padding columns must have been cleared."""
        code = self._code
        with self._rows(window_row, window_rows) as (row, is_inside, own):
            with code.when(is_inside):
                source = image.at(code, row).pointer
                for part in self._parts:
                    self._read_part(source, own, part)
            outside = code.op("xor", is_inside, code.constant(1, is_inside.kind))
            with code.when(outside):
                clear_floats(code, own, self._pitch)

    def add_to(self, image: Matrix, window_row: LaneValue, window_rows: LaneValue) -> None:
        """Add the rows read by windows to those of the image."""
        code = self._code
        with (
            self._rows(window_row, window_rows) as (row, is_inside, own),
            code.when(is_inside),
        ):
            target = image.at(code, row).pointer
            for part in self._parts:
                self._add_part(own, target, part)

    @contextmanager
    def _rows(
        self, window_row: LaneValue, window_rows: LaneValue
    ) -> Iterator[tuple[LaneValue, LaneValue, str]]:
        """Yield the rows read by windows: index in the image, whether it exists, address here."""
        code, w = self._code, self._windows
        seen = times(code, window_rows, w.stride[0])
        first = code.op("sub", times(code, window_row, w.stride[0]), index(w.padding[0]))
        with code.loop(index(0), code.op("add", seen, index(self._more_rows))) as n:
            row = code.op("add", first, n)
            is_inside = code.compare("ult", row, index(self._image[0]))
            own = code.offset(self._pointer, "float32", times(code, n, self._pitch))
            yield row, is_inside, own

    @property
    def _parts(self) -> list[_Part]:
        """Return the parts read by windows, and their columns that are in the image."""
        w = self._windows
        stride, padding = w.stride[1], w.padding[1]
        columns = min(self._image[1] + padding, self._seen)
        numbers = sorted({j * w.dilation[1] % stride for j in range(w.size[1])})
        found = [
            _Part(q, -(-max(padding - q, 0) // stride), -(-(columns - q) // stride), q - padding)
            for q in numbers
        ]
        return [part for part in found if part.first < part.end]

    def _read_part(self, source: str, own: str, part: _Part) -> None:
        code, stride = self._code, self._windows.stride[1]
        target = code.offset(own, "float32", index(part.number * self._part + part.first))
        source = code.offset(source, "float32", index(stride * part.first + part.image))
        size = part.end - part.first
        if stride == 1:
            each_piece(code, size, lambda at, kind: _copy(code, source, target, at, kind))
            return
        wide = self._wide(part)
        with code.loop(index(0), index(wide), _WIDE) as at:
            whole = Kind("float32", _WIDE * stride)
            values = code.load(code.offset(source, "float32", times(code, at, stride)), whole)
            value = _every(code, values, stride)
            code.store(value, code.offset(target, "float32", at))
        with code.loop(index(wide), index(size)) as at:
            value = code.load(
                code.offset(source, "float32", times(code, at, stride)), Kind("float32")
            )
            code.store(value, code.offset(target, "float32", at))

    def _wide(self, part: _Part) -> int:
        """Return the columns of a part whose vectors, with the skipped columns, are within a row of
        the image.
        """
        stride = self._windows.stride[1]
        if stride > _MOST_STRIDE:
            return 0
        inside = (self._image[1] - stride * part.first - part.image) // stride
        return max(min(inside, part.end - part.first), 0) // _WIDE * _WIDE

    def _add_part(self, own: str, target: str, part: _Part) -> None:
        code, stride = self._code, self._windows.stride[1]
        source = code.offset(own, "float32", index(part.number * self._part + part.first))
        target = code.offset(target, "float32", index(stride * part.first + part.image))

        def add(at: LaneValue, kind: Kind) -> None:
            place = code.offset(target, "float32", times(code, at, stride))
            value = code.load(code.offset(source, "float32", at), kind)
            code.store(code.op("fadd", code.load(place, kind), value), place)

        if stride == 1:
            each_piece(code, part.end - part.first, add)
            return
        with code.loop(index(0), index(part.end - part.first)) as at:
            add(at, Kind("float32"))


def clear_floats(code: Code, pointer: str, count: int) -> None:
    """Write zeros; the count is a whole number of vectors."""
    zero = code.constant(0.0, FLOATS)
    with code.loop(index(0), index(count), LANES) as at:
        code.store(zero, code.offset(pointer, "float32", at))


def _copy(code: Code, source: str, target: str, at: LaneValue, kind: Kind) -> None:
    value = code.load(code.offset(source, "float32", at), kind)
    code.store(value, code.offset(target, "float32", at))


def _every(code: Code, values: LaneValue, stride: int) -> LaneValue:
    """Return every n-th lane."""
    lanes = values.kind.lanes // stride
    numbers = ", ".join(f"i32 {n * stride}" for n in range(lanes))
    kind, order = Kind("float32", lanes), f"<{lanes} x i32> <{numbers}>"
    return code.make(kind, f"shufflevector {values}, {values.kind.ir} poison, {order}")
