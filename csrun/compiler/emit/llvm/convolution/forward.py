"""Convolution: the weight times the pixels of windows, by blocks of windows and channels."""

from math import gcd, prod

from csrun.cirh.ops.convolution import Windows
from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.convolution.convolution_sizes import LEAST_BLOCKS, WindowBlock
from csrun.compiler.emit.llvm.convolution.padded_plane import PaddedPlane
from csrun.compiler.emit.llvm.convolution.pieces import each_piece, each_step, reversed_lanes
from csrun.compiler.emit.llvm.convolution.product_writer import ProductWriter
from csrun.compiler.emit.llvm.lane_values import INDEX, LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.loops.nests import argument
from csrun.compiler.emit.llvm.products.matrices import (
    FLOAT,
    FLOATS,
    Matrix,
    each_vector,
    smaller,
    times,
)
from csrun.compiler.emit.llvm.products.packed_products import ProductSizes
from csrun.compiler.graph.array import Array
from csrun.compiler.kernels.convolution import Convolve, ConvolveBackwardInput
from csrun.executable.products import BLOCK_K, BLOCK_ROWS

LEAST_PIECE = 4  # windows from which writing them directly to panels pays


class ConvolveWriter(ProductWriter):
    """Writes the function of a convolution: a row is a block of windows and some of the maps."""

    def __init__(self, kernel: Convolve, panel: int) -> None:
        super().__init__(kernel, panel)
        sizes = self.sizes
        self._bias = kernel.bias
        self._channels = min(max(BLOCK_K // sizes.taps, 1), sizes.inputs)
        parts = -(-LEAST_BLOCKS // (sizes.blocks * sizes.groups))
        self._parts = min(parts, -(-sizes.outputs // BLOCK_ROWS))
        self._outputs = -(-sizes.outputs // self._parts)
        self._columns = self.scratch.take(4 * sizes.taps * self.stride)
        self._packed = self.products.room(sizes.block_windows, self._channels * sizes.taps)
        results = self.scratch.take(4 * self._outputs * self.stride)
        self._results = Matrix(results, self.stride)

    @property
    def rows(self) -> int:
        return self.sizes.blocks * self.sizes.groups * self._parts

    def write_row(self, row: LaneValue) -> None:
        code, sizes = self.code, self.sizes
        item, part = (code.op(how, row, index(self._parts)) for how in ("udiv", "urem"))
        number, group = (code.op(how, item, index(sizes.groups)) for how in ("udiv", "urem"))
        block = sizes.block(code, number)
        first = times(code, part, self._outputs)
        outputs = smaller(code, code.op("sub", index(sizes.outputs), first), index(self._outputs))
        first = code.op("add", times(code, group, sizes.outputs), first)
        with code.loop(index(0), index(sizes.inputs), self._channels) as channel:
            left = code.op("sub", index(sizes.inputs), channel)
            channels = smaller(code, left, index(self._channels))
            depth = times(code, channels, sizes.taps)
            own = code.op("add", times(code, group, sizes.inputs), channel)
            self._pack(block, own, channels, depth)
            weight = self.weight(first, channel)
            is_later = code.convert("zext", code.compare("sgt", channel, index(0)), "int64")
            product = ProductSizes(outputs, block.count, depth)
            self.products.multiply(weight, self._packed, self._results, product, is_later)
        self._write_maps(block, first, outputs)

    def _pack(
        self, block: WindowBlock, first: LaneValue, channels: LaneValue, depth: LaneValue
    ) -> None:
        """Pack the pixels of windows in some channels as panels."""
        code, sizes = self.code, self.sizes
        if sizes.is_plain and sizes.block_samples == 1:
            pixels = self.image(block.sample, first).at(code, block.row).pointer
            images = Matrix(pixels, self.kernel.images.strides[1])
            self.products.pack(images, block.count, depth, self._packed)
            return
        with code.loop(index(0), channels) as channel:
            own = code.op("add", first, channel)
            row = times(code, channel, sizes.taps)
            if self.plane is not None and self._piece >= LEAST_PIECE:
                self._write_panels(self.plane, block, own, row, depth)
            else:
                self.write_columns(block, own, self._columns)
                self._copy_columns(block, row, depth)

    @property
    def _piece(self) -> int:
        """Number of windows of a row that never span two panels."""
        return gcd(self.sizes.places[1], self.panel, LANES)

    def _write_panels(
        self,
        plane: PaddedPlane,
        block: WindowBlock,
        channel: LaneValue,
        first: LaneValue,
        depth: LaneValue,
    ) -> None:
        """Write the pixels of windows in a channel to panels, starting at a row of the panels."""
        code, width, kind = self.code, self.sizes.places[1], Kind("float32", self._piece)
        with self.each_sample(block) as (sample, start):
            image = self.image(code.op("add", block.sample, sample), channel)
            plane.read(image, block.row, block.rows)
            with self.each_tap() as (tap, i, j), code.loop(index(0), block.rows) as row:
                seen = Matrix(plane.tap(i, j), plane.row_step).at(code, row)
                target = self.offset(self._packed, (code.op("add", first, tap), self.panel))
                column = code.op("add", start, times(code, row, width))

                def copy(at: LaneValue) -> None:
                    value = code.load(code.offset(seen.pointer, "float32", at), kind)
                    place = self._place(target, code.op("add", column, at), depth)
                    code.store(value, place)

                each_step(code, width, kind.lanes, copy)

    def _place(self, row: str, column: LaneValue, depth: LaneValue) -> str:
        """Return the address of a column in a row of the panels."""
        code = self.code
        panel = code.op("mul", code.op("and", column, index(-self.panel)), depth)
        lane = code.op("and", column, index(self.panel - 1))
        return self.offset(row, (panel, 1), (lane, 1))

    def _copy_columns(self, block: WindowBlock, first: LaneValue, depth: LaneValue) -> None:
        """Copy rows of columns to panels, starting at a row of the panels."""
        code, kind = self.code, Kind("float32", self.panel)
        with code.loop(index(0), block.count, self.panel) as column:
            start = code.op("mul", column, depth)
            panel = self.offset(self._packed, (start, 1), (first, self.panel))
            source = self.offset(self._columns, (column, 1))
            with code.loop(index(0), index(self.sizes.taps)) as tap:
                value = code.load(self.offset(source, (tap, self.stride)), kind)
                code.store(value, self.offset(panel, (tap, self.panel)))

    def _write_maps(self, block: WindowBlock, first: LaneValue, outputs: LaneValue) -> None:
        """Add the bias, and store the maps."""
        code = self.code
        count = code.op("udiv", block.count, block.samples)
        with self.each_sample(block) as (sample, column), code.loop(index(0), outputs) as output:
            channel = code.op("add", first, output)
            source = self._results.at(code, output, column)
            target = self.maps(block, channel, sample)
            bias = code.constant(0.0, FLOATS)
            if self._bias is not None:
                place = self.offset(self.bases[self._bias], (channel, self._bias.strides[0]))
                bias = code.splat(code.load(place, FLOAT), FLOATS.lanes)

            def store(at: LaneValue, mask: LaneValue | None) -> None:
                value = source.load(code, at, None)
                if self._bias is not None:
                    value = code.op("fadd", value, bias)
                Matrix(target.pointer, 0).store(code, value, at, mask)

            each_vector(code, count, store)


class FlippedWriter(ConvolveWriter):
    """Writes the function of the images' gradient for windows at every pixel.

    It is a convolution of the maps with the flipped weight [G C, O, KH, KW], which is written
    before all rows.
    """

    def __init__(self, kernel: ConvolveBackwardInput, panel: int) -> None:
        weight, groups = kernel.weight, kernel.groups
        outputs, inputs, *size = weight.shape
        shape = groups * inputs, outputs // groups, *size
        flipped = Array("flipped", shape, weight.dtype)
        w = kernel.windows
        windows = Windows(w.size, w.stride, kernel.flipped_padding, w.dilation)
        arrays = kernel.maps, flipped, kernel.images
        super().__init__(Convolve(kernel.layer, *arrays, windows, groups, None), panel)
        self._weight = weight
        self.parameters = kernel.maps, weight, kernel.images
        self.bases[flipped] = self.parts

    @property
    def parts_bytes(self) -> int:
        return 4 * prod(self.kernel.weight.shape)

    @property
    def begin_rows(self) -> int:
        return self.kernel.weight.shape[0]

    def begin_lines(self) -> list[str]:
        """Return the instructions that flip the weight; a row is a channel of the images."""
        code, sizes, step = Code(), self.sizes, self._weight.strides[0]
        source, target = argument(code, 1), argument(code, len(self.parameters) + 2)
        with (
            code.loop(LaneValue("%first", INDEX), LaneValue("%last", INDEX)) as row,
            code.loop(index(0), index(sizes.inputs)) as n,
        ):
            # The inputs of this convolution are the maps of the other one.
            group, channel = (code.op(how, row, index(sizes.outputs)) for how in ("udiv", "urem"))
            output = code.op("add", times(code, group, sizes.inputs), n)
            read = Matrix(source, step).at(code, output)
            read = Matrix(read.pointer, sizes.taps).at(code, channel)
            written = Matrix(target, sizes.depth).at(code, row)
            written = Matrix(written.pointer, sizes.taps).at(code, n)

            def flip(at: LaneValue, kind: Kind) -> None:
                behind = code.op("sub", index(sizes.taps - kind.lanes), at)
                value = code.load(code.offset(read.pointer, "float32", behind), kind)
                place = code.offset(written.pointer, "float32", at)
                code.store(reversed_lanes(code, value), place)

            each_piece(code, sizes.taps, flip)
        self.code.declared |= code.declared
        return ["entry:", *code.entry, *code.lines, "  ret void"]
