"""Convolution: the weight times what windows see, for blocks of windows and of channels."""

from csrun.compiler.emit.llvm.code import Kind, LaneValue, index
from csrun.compiler.emit.llvm.convolution.convolution_sizes import LEAST_BLOCKS, WindowBlock
from csrun.compiler.emit.llvm.convolution.product_writer import ProductWriter
from csrun.compiler.emit.llvm.matrices import FLOAT, FLOATS, Matrix, each_vector, smaller, times
from csrun.compiler.emit.llvm.packed_products import ProductSizes
from csrun.compiler.kernels.convolution import Convolve
from csrun.executable.products import BLOCK_K, BLOCK_ROWS


class ForwardWriter(ProductWriter):
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
        """Pack what windows see of some channels as panels."""
        code, sizes = self.code, self.sizes
        if sizes.is_plain and sizes.block_samples == 1:
            pixels = self.image(block.sample, first).at(code, block.row).pointer
            images = Matrix(pixels, self.kernel.images.strides[1])
            self.products.pack(images, block.count, depth, self._packed)
            return
        with code.loop(index(0), channels) as channel:
            own = code.op("add", first, channel)
            self.write_columns(block, own, self._columns)
            self._write_panels(block, times(code, channel, sizes.taps), depth)

    def _write_panels(self, block: WindowBlock, first: LaneValue, depth: LaneValue) -> None:
        """Copy rows of columns to panels, from a row of these on."""
        code, kind = self.code, Kind("float32", self.panel)
        with code.loop(index(0), block.count, self.panel) as column:
            start = code.op("mul", column, depth)
            panel = self.offset(self._packed, (start, 1), (first, self.panel))
            source = self.offset(self._columns, (column, 1))
            with code.loop(index(0), index(self.sizes.taps)) as tap:
                value = code.load(self.offset(source, (tap, self.stride)), kind)
                code.store(value, self.offset(panel, (tap, self.panel)))

    def _write_maps(self, block: WindowBlock, first: LaneValue, outputs: LaneValue) -> None:
        """Add the bias, and store."""
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
