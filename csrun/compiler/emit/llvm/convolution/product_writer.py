"""Base class of functions with matrix products: columns of a block, and its maps."""

from abc import ABC
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from math import prod

from csrun.compiler.emit.llvm.convolution.convolution_sizes import WindowBlock
from csrun.compiler.emit.llvm.convolution.convolution_writer import ConvolutionWriter
from csrun.compiler.emit.llvm.convolution.padded_plane import PaddedPlane
from csrun.compiler.emit.llvm.convolution.pieces import each_step, lanes_of
from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.products.matrices import Matrix, each_vector, padded, times
from csrun.compiler.emit.llvm.products.packed_products import Products
from csrun.compiler.kernels.convolution import Convolution


class ProductWriter(ConvolutionWriter, ABC):
    """Writes a function over columns of blocks: the pixels of windows, with one row per pixel.

    panel: columns of a packed panel.
    stride: elements between rows of columns.
    """

    def __init__(self, kernel: Convolution, panel: int) -> None:
        super().__init__(kernel)
        sizes = self.sizes
        self.panel = panel
        self.products = Products(self.code, self.scratch, panel)
        self.stride = padded(sizes.block_windows) + LANES
        self.plane = None
        if not sizes.is_plain:
            places = sizes.block_rows, sizes.places[1]
            self.plane = PaddedPlane(self.code, self.scratch, sizes.image, sizes.windows, places)
            self.planes.append(self.plane)

    @cached_property
    def map_rows(self) -> Matrix:
        """Return scratch for rows of maps with the columns of a block."""
        return Matrix(self.scratch.take(4 * self.sizes.outputs * self.stride), self.stride)

    def maps(self, block: WindowBlock, channel: LaneValue, sample: LaneValue) -> Matrix:
        """Return the outputs of a block in the maps of one of its samples, one row per map."""
        own = self.map(self.code.op("add", block.sample, sample), channel)
        start = own.at(self.code, block.row).pointer
        return Matrix(start, self.kernel.maps.strides[1])

    @contextmanager
    def each_tap(self) -> Iterator[tuple[LaneValue, LaneValue, LaneValue]]:
        """Yield the pixels of a window: index, row, column."""
        code, (rows, columns) = self.code, self.sizes.windows.size
        with code.loop(index(0), index(rows)) as i, code.loop(index(0), index(columns)) as j:
            yield code.op("add", times(code, i, columns), j), i, j

    @contextmanager
    def each_sample(self, block: WindowBlock) -> Iterator[tuple[LaneValue, LaneValue]]:
        """Yield the samples of a block: index, and its first column."""
        with self.code.loop(index(0), block.samples) as sample:
            yield sample, times(self.code, sample, prod(self.sizes.places))

    def write_columns(self, block: WindowBlock, channel: LaneValue, target: str) -> None:
        """Write the pixels of a block's windows in a channel."""
        code = self.code
        with self.each_sample(block) as (sample, first):
            image = self.image(code.op("add", block.sample, sample), channel)
            start = self.offset(target, (first, 1))
            if self.plane is None:
                pixels = self.offset(image.pointer, (block.row, self.sizes.places[1]))
                self.copy_row(pixels, start, code.op("udiv", block.count, block.samples))
            else:
                self.plane.read(image, block.row, block.rows)
                self._copy_taps(self.plane, block, start)

    def _copy_taps(self, plane: PaddedPlane, block: WindowBlock, target: str) -> None:
        with self.each_tap() as (tap, i, j):
            own = Matrix(self.offset(target, (tap, self.stride)), self.sizes.places[1])
            self._copy_seen(Matrix(plane.tap(i, j), plane.row_step), own, block.rows)

    def copy_row(self, source: str, target: str, count: LaneValue) -> None:
        """Copy numbers; vectors may extend beyond the last one."""
        row, own = Matrix(source, 0), Matrix(target, 0)
        code = self.code
        each_vector(
            code, count, lambda at, mask: own.store(code, row.load(code, at, mask), at, None)
        )

    def _copy_seen(self, seen: Matrix, own: Matrix, rows: LaneValue) -> None:
        """Copy in whole vectors; data after a row's end is overwritten by the next row."""
        code, width = self.code, self.sizes.places[1]
        kind = Kind("float32", lanes_of(width))

        def copy(at: LaneValue) -> None:
            value = code.load(seen.at(code, row, at).pointer, kind)
            code.store(value, own.at(code, row, at).pointer)

        with code.loop(index(0), rows) as row:
            each_step(code, width, kind.lanes, copy)

    def map_matrix(self, block: WindowBlock, first: LaneValue) -> Matrix:
        """Return the maps of a group as rows with the columns of a block."""
        zero, outputs = index(0), index(self.sizes.outputs)
        if self.sizes.block_samples == 1:
            return self.maps(block, first, zero)
        code, target = self.code, self.map_rows
        with (
            self.each_sample(block) as (sample, column),
            code.loop(zero, outputs) as output,
        ):
            source = self.maps(block, first, sample).at(code, output)
            own = target.at(code, output, column)
            self.copy_row(source.pointer, own.pointer, index(prod(self.sizes.places)))
        return target
