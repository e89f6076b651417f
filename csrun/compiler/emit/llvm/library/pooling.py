"""Machine code of max and average pooling, forward and backward, plane by plane.

A window's pixels are visited row by row; those outside of the image are skipped. Forward computes
16 windows of a row at once, and those at the borders one by one; backward computes one.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.library.library_function import (
    FIRST,
    LAST,
    LibraryFunction,
    each_vector,
)
from csrun.compiler.emit.llvm.loops.scalars import call_function, convert
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.graph.kernel import Phase
from csrun.compiler.kernels.pooling import AveragePool, MaxPool, Pooling

#: Windows of a row from which vectors pay, and the largest stride for which they do.
LEAST_WINDOWS, MOST_STRIDE = 4, 3
MOST_PIXELS = 16  # pixels of a window up to which the loop is unrolled


def max_pool_code(kernel: MaxPool, name: str) -> KernelCode | None:
    """Return machine code over planes; None if these are not contiguous."""
    return _code_of(_MaxWriter(kernel), name)


def average_pool_code(kernel: AveragePool, name: str) -> KernelCode | None:
    """Return machine code over planes; None if these are not contiguous."""
    return _code_of(_AverageWriter(kernel, kernel.counts_padding), name)


@dataclass(frozen=True)
class _WindowLanes:
    """A window, or one per lane: index in the plane and first pixel of the first window.

    mask: lanes that have a window, `count` of them.
    """

    number: LaneValue
    row: LaneValue
    column: LaneValue
    count: int
    mask: LaneValue | None = None


@dataclass(frozen=True)
class _Pixel:
    """A pixel of windows: its index in them, and its position in the image for the first window.

    windows: their number.
    inside: lanes in which it is in the image, None for all.
    """

    number: LaneValue
    place: LaneValue
    column: LaneValue
    windows: int
    inside: LaneValue | None = None


class _PoolingWriter(ABC):
    """Writes loops over planes, their windows, and the pixels of these."""

    def __init__(self, kernel: Pooling) -> None:
        self.kernel = kernel
        self.function = LibraryFunction((*kernel.operands, *kernel.results))
        self._code = self.function.code
        self._is_forward = kernel.phase is Phase.FORWARD
        images, maps = (kernel.operands[0], kernel.results[0])[:: 1 if self._is_forward else -1]
        self._image, self._places = images.shape[1:], maps.shape[1:]
        self._stride = kernel.windows.stride[1]
        is_wide = self._places[1] >= LEAST_WINDOWS and self._stride <= MOST_STRIDE
        self._kind = Kind(images.dtype, LANES if self._is_forward and is_wide else 1)
        self._is_padded = kernel.windows.padding != (0, 0)
        self._starts: list[str] = []

    def write(self) -> None:
        """Write the function; gradients are added to zeros."""
        code = self._code
        with code.loop(FIRST, LAST) as plane:
            count = len(self.function.parameters)
            self._starts = [self.function.row(n, plane) for n in range(count)]
            if not self._is_forward:
                self._clear()
            with code.loop(index(0), index(self._places[0])) as row:
                self._write_row(row)

    @abstractmethod
    def forward(self, windows: _WindowLanes) -> None:
        """Store the results of windows' pixels."""

    @abstractmethod
    def backward(self, window: _WindowLanes) -> None:
        """Add to the gradients of a window's pixels."""

    def _write_row(self, row: LaneValue) -> None:
        """Write a row of windows; inner windows, which need no masks, are separate."""
        code, (rows, columns) = self._code, (self._inner_windows(d) for d in (0, 1))
        if not self._is_padded or self._kind.lanes == 1 or len(columns) < LEAST_WINDOWS:
            self._write_windows(row, range(self._places[1]))
            return
        above = code.op("sub", row, index(rows.start))
        with code.when(code.compare("uge", above, index(len(rows)))):
            self._write_windows(row, range(self._places[1]))
        with code.when(code.compare("ult", above, index(len(rows)))):
            for border in (range(columns.start), range(columns.stop, self._places[1])):
                with self._written_as(1, is_padded=True):
                    self._write_windows(row, border)
            with self._written_as(LANES, is_padded=False):
                self._write_windows(row, columns)

    def _inner_windows(self, axis: int) -> range:
        """Return the windows whose pixels are all in the image, along an axis."""
        w = self.kernel.windows
        reach = (w.size[axis] - 1) * w.dilation[axis]
        first = -(-w.padding[axis] // w.stride[axis])
        last = (self._image[axis] - 1 - reach + w.padding[axis]) // w.stride[axis]
        return range(first, max(min(last + 1, self._places[axis]), first))

    @contextmanager
    def _written_as(self, lanes: int, is_padded: bool) -> Iterator[None]:
        """Write vectors of windows, which are all inner ones or not."""
        before = self._kind, self._is_padded
        self._kind, self._is_padded = Kind(self._kind.dtype, lanes), is_padded
        yield
        self._kind, self._is_padded = before

    def _write_windows(self, row: LaneValue, columns: range) -> None:
        """Write some windows of a row."""
        code, first = self._code, index(columns.start)
        write = self.forward if self._is_forward else self.backward
        if self._kind.lanes > 1:
            rest = len(columns) % LANES

            def write_vector(at: LaneValue, mask: LaneValue | None) -> None:
                write(self._window(row, code.op("add", at, first), rest, mask))

            each_vector(code, len(columns), write_vector)
            return
        with code.loop(first, index(columns.stop)) as column:
            write(self._window(row, column))

    def _window(
        self, row: LaneValue, column: LaneValue, rest: int = 0, mask: LaneValue | None = None
    ) -> _WindowLanes:
        """Return the windows of a vector; rest: number of lanes in the mask."""
        code, w = self._code, self.kernel.windows
        number = code.op("add", code.op("mul", row, index(self._places[1])), column)
        down, right = (
            code.op("sub", code.op("mul", place, index(stride)), index(padding))
            for place, stride, padding in zip((row, column), w.stride, w.padding, strict=True)
        )
        count = self._kind.lanes if mask is None else rest
        return _WindowLanes(number, down, right, count, mask)

    def _clear(self) -> None:
        code, kind = self._code, Kind(self._kind.dtype, LANES)
        zeros = code.constant(0, kind)

        def write(at: LaneValue, mask: LaneValue | None) -> None:
            code.store(zeros, code.offset(self._starts[-1], kind.dtype, at), mask)

        each_vector(code, prod(self._image), write)

    # Pixels of windows.

    def _each_pixel(self, windows: _WindowLanes, write: Callable[[_Pixel], None]) -> None:
        """Write instructions for the pixels in the image."""
        code, (rows, columns) = self._code, self.kernel.windows.size
        if not self._is_padded and rows * columns <= MOST_PIXELS:
            for n in range(rows * columns):
                place = index(n // columns), index(n % columns)
                with self._pixel(windows, index(n), *place) as pixel:
                    write(pixel)
            return
        with code.loop(index(0), index(rows)) as i, code.loop(index(0), index(columns)) as j:
            number = code.op("add", code.op("mul", i, index(columns)), j)
            with self._pixel(windows, number, i, j) as pixel:
                write(pixel)

    @contextmanager
    def _pixel(
        self, windows: _WindowLanes, number: LaneValue, i: LaneValue, j: LaneValue
    ) -> Iterator[_Pixel]:
        """Enter a pixel of windows; the instructions in it run if it is in the image."""
        code, (height, width) = self._code, self._image
        down, right = self.kernel.windows.dilation
        row = code.op("add", windows.row, code.op("mul", i, index(down)))
        column = code.op("add", windows.column, code.op("mul", j, index(right)))
        place = code.op("add", code.op("mul", row, index(width)), column)
        if not self._is_padded:
            yield _Pixel(number, place, column, windows.count)
            return
        is_inside, inside = code.compare("ult", row, index(height)), None
        if self._kind.lanes > 1:
            inside = self._inside(column, LANES, self._stride)
        else:
            is_column = code.compare("ult", column, index(width))
            is_inside = code.op("and", is_inside, is_column)
        with code.when(is_inside):
            yield _Pixel(number, place, column, windows.count, inside)

    def _inside(self, column: LaneValue, lanes: int, step: int) -> LaneValue:
        """Return the lanes whose column is in the image, from the first lane's column."""
        code, kind = self._code, Kind("int32", lanes)
        numbers = ", ".join(f"i32 {n * step}" for n in range(lanes))
        columns = code.splat(convert(code, column, "int32"), lanes)
        columns = code.op("add", columns, LaneValue(f"<{numbers}>", kind))
        return code.compare("ult", columns, code.constant(self._image[1], kind))

    def _seen(self, pixel: _Pixel) -> LaneValue:
        """Return the values of a pixel; undefined for windows without it."""
        code, stride = self._code, self._stride
        if self._kind.lanes == 1:
            return self._load(0, pixel.place)
        # All values between them are loaded, too: a gather is one load per lane.
        whole = Kind(self._kind.dtype, LANES * stride)
        start = code.offset(self._starts[0], whole.dtype, pixel.place)
        if self._is_padded:
            mask = self._inside(pixel.column, whole.lanes, 1)
        else:
            mask = code.first_lanes((pixel.windows - 1) * stride + 1, whole.lanes)
        values = code.load(start, whole, mask)
        lanes = ", ".join(f"i32 {n * stride}" for n in range(LANES))
        order = f"<{LANES} x i32> <{lanes}>"
        return code.make(self._kind, f"shufflevector {values}, {whole.ir} poison, {order}")

    def _where_inside(self, pixel: _Pixel, value: LaneValue, other: LaneValue) -> LaneValue:
        return value if pixel.inside is None else self._code.select(pixel.inside, value, other)

    # Values of the plane.

    def _load(self, parameter: int, place: LaneValue, dtype: str | None = None) -> LaneValue:
        kind = Kind(dtype or self._kind.dtype)
        return self._code.load(self._code.offset(self._starts[parameter], kind.dtype, place), kind)

    def _store(self, parameter: int, value: LaneValue, windows: _WindowLanes) -> None:
        place = self._code.offset(self._starts[parameter], value.kind.dtype, windows.number)
        self._code.store(value, place, windows.mask)

    def _add(self, value: LaneValue, place: LaneValue) -> None:
        """Add to a pixel of the result."""
        last = len(self._starts) - 1
        total = call_function(self._code, "add", [self._load(last, place), value])
        pointer = self._code.offset(self._starts[last], value.kind.dtype, place)
        self._code.store(total, pointer)


class _MaxWriter(_PoolingWriter):
    """Arrays: image, maxima, their indices; or gradient, indices, gradient of the image."""

    def forward(self, windows: _WindowLanes) -> None:
        """Write the maximum pixel, and its index: of equal ones the first, of NaN the last."""
        code, numbers = self._code, self._kind.of("int32")
        largest = code.slot(code.constant(float("-inf"), self._kind))
        taken = code.slot(code.constant(-1, numbers))

        def see(pixel: _Pixel) -> None:
            value, old = self._seen(pixel), code.get(largest, self._kind)
            before = code.get(taken, numbers)
            number = code.splat(convert(code, pixel.number, "int32"), numbers.lanes)
            is_nan = code.compare("uno", value, value)
            is_first = code.compare("slt", before, code.constant(0, numbers))
            is_larger = code.op("or", code.compare("ogt", value, old), is_nan)
            chosen = code.op("or", is_larger, is_first)
            if pixel.inside is not None:
                chosen = code.op("and", chosen, pixel.inside)
            code.set(largest, code.select(chosen, value, old))
            code.set(taken, code.select(chosen, number, before))

        self._each_pixel(windows, see)
        least = [code.get(taken, numbers), code.constant(0, numbers)]
        self._store(1, code.get(largest, self._kind), windows)
        self._store(2, call_function(code, "maximum", least), windows)

    def backward(self, window: _WindowLanes) -> None:
        """Add the window's gradient to its maximum pixel."""
        code, number = self._code, self._load(1, window.number, "int32")
        columns = code.constant(self.kernel.windows.size[1], number.kind)
        i, j = (convert(code, code.op(how, number, columns), "int64") for how in ("udiv", "urem"))
        # Forward selects a pixel of the image, except for windows that have none.
        is_checked = self._has_window_outside(0) or self._has_window_outside(1)
        with self._written_as(1, is_checked), self._pixel(window, number, i, j) as pixel:
            self._add(self._load(0, window.number), pixel.place)

    def _has_window_outside(self, axis: int) -> bool:
        """Return whether any window has no pixel in the image, along an axis."""
        w = self.kernel.windows
        starts = (n * w.stride[axis] - w.padding[axis] for n in range(self._places[axis]))
        reach = w.size[axis] * w.dilation[axis]
        pixels = (range(start, start + reach, w.dilation[axis]) for start in starts)
        image = range(self._image[axis])
        return not all(any(pixel in image for pixel in window) for window in pixels)


class _AverageWriter(_PoolingWriter):
    """Arrays: image, means; or gradient, gradient of the image."""

    def __init__(self, kernel: Pooling, counts_padding: bool) -> None:
        super().__init__(kernel)
        self._counts_padding = counts_padding

    def forward(self, windows: _WindowLanes) -> None:
        """Write the sum of the pixels, divided by their count."""
        total = self._sum_of(windows, self._seen)
        self._store(1, self._over_count(total, windows), windows)

    def backward(self, window: _WindowLanes) -> None:
        """Add to each pixel its share."""
        share = self._over_count(self._load(0, window.number), window)
        self._each_pixel(window, lambda pixel: self._add(share, pixel.place))

    def _over_count(self, value: LaneValue, windows: _WindowLanes) -> LaneValue:
        """Return a value divided by the number of pixels, or of those in the image."""
        count = self._code.constant(prod(self.kernel.windows.size), self._kind)
        if not self._counts_padding:
            one = self._code.constant(1, self._kind)
            count = self._sum_of(windows, lambda pixel: one)
        return call_function(self._code, "divide", [value, count])

    def _sum_of(self, windows: _WindowLanes, value: Callable[[_Pixel], LaneValue]) -> LaneValue:
        """Return the sum of a function over the pixels in the image."""
        code = self._code
        slot = code.slot(code.constant(0, self._kind))

        def add(pixel: _Pixel) -> None:
            old = code.get(slot, self._kind)
            total = call_function(code, "add", [old, value(pixel)])
            code.set(slot, self._where_inside(pixel, total, old))

        self._each_pixel(windows, add)
        return code.get(slot, self._kind)


def _code_of(writer: _PoolingWriter, name: str) -> KernelCode | None:
    if not all(array.is_contiguous for array in writer.function.parameters):
        return None
    writer.write()
    return writer.function.finished(name, writer.kernel.results[0].shape[0])
