"""Gradients of a convolution with respect to its images and its weight."""

from functools import partial, reduce

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.convolution.convolution_sizes import LEAST_BLOCKS, WindowBlock
from csrun.compiler.emit.llvm.convolution.pieces import clear_image, each_piece
from csrun.compiler.emit.llvm.convolution.product_writer import ProductWriter
from csrun.compiler.emit.llvm.lane_values import Kind, LaneValue, index
from csrun.compiler.emit.llvm.loops.nests import argument
from csrun.compiler.emit.llvm.products.matrices import Matrix, padded, smaller, times
from csrun.compiler.emit.llvm.products.packed_products import ProductSizes
from csrun.compiler.kernels.convolution import ConvolveBackwardInput, ConvolveBackwardWeight

COLUMN_ROWS = 128  # columns at a time: whole channels, within the cache
LEAST_ROWS = 192  # columns per row of the weight gradient's job, if there are enough
SMALL_WEIGHT = 1 << 16  # floats of partial sums, which are added at the end
MOST_PARTS_BYTES = 4 << 20


class InputGradientWriter(ProductWriter):
    """Writes the function of the images' gradient: a row is some samples and some channels.

    The transposed weight times the maps' gradient is the gradient of each pixel in each window;
    these are added to the image (col2im).
    """

    def __init__(self, kernel: ConvolveBackwardInput, panel: int) -> None:
        super().__init__(kernel, panel)
        sizes = self.sizes
        self._channels = min(max(COLUMN_ROWS // sizes.taps, 1), sizes.inputs)
        items = sizes.blocks // sizes.sample_blocks * sizes.groups
        parts = min(-(-LEAST_BLOCKS // items), -(-sizes.inputs // self._channels))
        self._each = -(-sizes.inputs // parts)
        self._parts = -(-sizes.inputs // self._each)
        self._packed = self.products.room(sizes.block_windows, sizes.outputs)
        rows = self._channels * sizes.taps
        self._columns = Matrix(self.scratch.take(4 * rows * self.stride), self.stride)

    @property
    def rows(self) -> int:
        sizes = self.sizes
        return sizes.blocks // sizes.sample_blocks * sizes.groups * self._parts

    def write_row(self, row: LaneValue) -> None:
        code, sizes = self.code, self.sizes
        item, part = (code.op(how, row, index(self._parts)) for how in ("udiv", "urem"))
        samples, group = (code.op(how, item, index(sizes.groups)) for how in ("udiv", "urem"))
        first = times(code, part, self._each)
        last = smaller(code, code.op("add", first, index(self._each)), index(sizes.inputs))
        with code.loop(index(0), index(sizes.sample_blocks)) as at:
            number = code.op("add", times(code, samples, sizes.sample_blocks), at)
            block = sizes.block(code, number)
            maps = self.map_matrix(block, times(code, group, sizes.outputs))
            self.products.pack(maps, block.count, index(sizes.outputs), self._packed)
            with code.loop(first, last, self._channels) as channel:
                channels = smaller(code, code.op("sub", last, channel), index(self._channels))
                self._write_channels(block, group, channel, channels)

    def _write_channels(
        self, block: WindowBlock, group: LaneValue, first: LaneValue, channels: LaneValue
    ) -> None:
        code, sizes = self.code, self.sizes
        weight = self.weight(times(code, group, sizes.outputs), first).transposed
        rows = times(code, channels, sizes.taps)
        product = ProductSizes(rows, block.count, index(sizes.outputs))
        own = code.op("add", times(code, group, sizes.inputs), first)
        if sizes.is_plain and sizes.block_samples == 1:
            pixels = self.image(block.sample, own).at(code, block.row).pointer
            images = Matrix(pixels, self.kernel.images.strides[1])
            self.products.multiply(weight, self._packed, images, product)
            return
        self.products.multiply(weight, self._packed, self._columns, product)
        with code.loop(index(0), channels) as n, self.each_sample(block) as (sample, column):
            channel = code.op("add", own, n)
            image = self.image(code.op("add", block.sample, sample), channel)
            source = self._columns.at(code, times(code, n, sizes.taps), column)
            self._add_columns(block, source, image)

    def _add_columns(self, block: WindowBlock, columns: Matrix, image: Matrix) -> None:
        """Add columns of a channel to its image, in one row of pixels after the other."""
        code, sizes = self.code, self.sizes
        if self.plane is None:
            each_piece(
                code, sizes.places[1], lambda at, kind: _move(code, columns, image, at, kind)
            )
            return
        with code.when(code.compare("eq", block.row, index(0))):
            clear_image(code, image, sizes.image)
        self.plane.clear()
        with self.each_tap() as (tap, i, j), code.loop(index(0), block.rows) as row:
            source = columns.at(code, tap).pointer
            own = Matrix(source, sizes.places[1]).at(code, row)
            target = Matrix(self.plane.tap(i, j), self.plane.row_step).at(code, row)

            def add(at: LaneValue, kind: Kind) -> None:
                value = code.load(code.offset(own.pointer, "float32", at), kind)
                place = code.offset(target.pointer, "float32", at)
                code.store(code.op("fadd", code.load(place, kind), value), place)

            each_piece(code, sizes.places[1], add)
        self.plane.add_to(image, block.row, block.rows)


class WeightGradientWriter(ProductWriter):
    """Writes the function of the weight's gradient: a row is some channels and some blocks.

    Columns times the transposed gradient of the maps, [K, O], is summed over the blocks, which are
    split into a fixed number of shares; their sums are added in order.
    """

    def __init__(self, kernel: ConvolveBackwardWeight, panel: int) -> None:
        super().__init__(kernel, panel)
        sizes = self.sizes
        self._adds = kernel.adds
        self._width = padded(sizes.outputs)
        floats = sizes.groups * sizes.depth * self._width
        parts = 1 if floats <= SMALL_WEIGHT else max(sizes.depth // LEAST_ROWS, 1)
        parts = min(parts, LEAST_BLOCKS, sizes.inputs)
        self._each = -(-sizes.inputs // parts)
        self._parts = -(-sizes.inputs // self._each)
        shares = -(-LEAST_BLOCKS // (sizes.groups * self._parts))
        shares = max(min(shares, sizes.blocks, MOST_PARTS_BYTES // (4 * floats)), 1)
        self._blocks = -(-sizes.blocks // shares)
        self._shares = -(-sizes.blocks // self._blocks)
        self._share_floats = floats
        self._channels = min(max(COLUMN_ROWS // sizes.taps, 1), self._each)
        rows = self._channels * sizes.taps
        self._columns = Matrix(self.scratch.take(4 * rows * self.stride), self.stride)
        self._packed = self.products.room(sizes.outputs, sizes.block_windows)

    @property
    def rows(self) -> int:
        return self._shares * self.sizes.groups * self._parts

    @property
    def parts_bytes(self) -> int:
        return 4 * self._shares * self._share_floats

    def write_row(self, row: LaneValue) -> None:
        code, sizes = self.code, self.sizes
        item, part = (code.op(how, row, index(self._parts)) for how in ("udiv", "urem"))
        share, group = (code.op(how, item, index(sizes.groups)) for how in ("udiv", "urem"))
        first = times(code, part, self._each)
        last = smaller(code, code.op("add", first, index(self._each)), index(sizes.inputs))
        begin = times(code, share, self._blocks)
        end = smaller(code, code.op("add", begin, index(self._blocks)), index(sizes.blocks))
        sums = self.offset(self.parts, (share, self._share_floats))
        sums = self.offset(sums, (group, sizes.depth * self._width))
        with code.loop(begin, end) as number:
            is_later = code.convert("zext", code.compare("sgt", number, begin), "int64")
            block = sizes.block(code, number)
            maps = self.map_matrix(block, times(code, group, sizes.outputs))
            outputs = index(sizes.outputs)
            self.products.pack(maps.transposed, outputs, block.count, self._packed)
            with code.loop(first, last, self._channels) as channel:
                count = smaller(code, code.op("sub", last, channel), index(self._channels))
                columns = self._columns_of(block, group, channel, count)
                own = Matrix(sums, self._width).at(code, times(code, channel, sizes.taps))
                rows = times(code, count, sizes.taps)
                product = ProductSizes(rows, outputs, block.count)
                self.products.multiply(columns, self._packed, own, product, is_later)
        if self._shares == 1:
            bounds = times(code, first, sizes.taps), times(code, last, sizes.taps)
            self._write_weight(code, self.bases[self.kernel.weight], self.parts, group, bounds)

    def end_lines(self) -> list[str]:
        if self._shares == 1:
            return []
        code, count = Code(), len(self.parameters)
        weight = argument(code, self.parameters.index(self.kernel.weight))
        parts = argument(code, count + 2)
        with code.loop(index(0), index(self.sizes.groups)) as group:
            bounds = index(0), index(self.sizes.depth)
            self._write_weight(code, weight, parts, group, bounds)
        self.code.declared |= code.declared
        return ["entry:", *code.entry, *code.lines, "  ret void"]

    def _columns_of(
        self, block: WindowBlock, group: LaneValue, first: LaneValue, channels: LaneValue
    ) -> Matrix:
        """Return the columns of a block, for some channels."""
        code, sizes = self.code, self.sizes
        own = code.op("add", times(code, group, sizes.inputs), first)
        if sizes.is_plain and sizes.block_samples == 1:
            pixels = self.image(block.sample, own).at(code, block.row).pointer
            return Matrix(pixels, self.kernel.images.strides[1])
        with code.loop(index(0), channels) as n:
            target = self._columns.at(code, times(code, n, sizes.taps)).pointer
            self.write_columns(block, code.op("add", own, n), target)
        return self._columns

    def _write_weight(
        self,
        code: Code,
        weight: str,
        parts: str,
        group: LaneValue,
        bounds: tuple[LaneValue, LaneValue],
    ) -> None:
        """Add the shares of some rows of [K, O], and store them transposed."""
        sizes, step = self.sizes, self.kernel.weight.strides[0]
        own = Matrix(parts, sizes.depth * self._width).at(code, group)

        def store(at: LaneValue, kind: Kind) -> None:
            output = code.op("add", times(code, group, sizes.outputs), at)
            target = Matrix(weight, step).at(code, output)
            with code.loop(*bounds) as row:
                found = [
                    Matrix(own.pointer, self._share_floats).at(code, index(share)).pointer
                    for share in range(self._shares)
                ]
                places = [Matrix(each, self._width).at(code, row, at).pointer for each in found]
                total = reduce(partial(code.op, "fadd"), [code.load(p, kind) for p in places])
                for lane in range(kind.lanes):
                    value = _lane(code, total, lane)
                    start = code.offset(target.pointer, "float32", index(lane * step))
                    place = code.offset(start, "float32", row)
                    if self._adds:
                        value = code.op("fadd", code.load(place, value.kind), value)
                    code.store(value, place)

        each_piece(code, sizes.outputs, store, most=1)


def _lane(code: Code, value: LaneValue, lane: int) -> LaneValue:
    if value.kind.lanes == 1:
        return value
    return code.make(Kind("float32"), f"extractelement {value}, i64 {lane}")


def _move(code: Code, source: Matrix, target: Matrix, at: LaneValue, kind: Kind) -> None:
    value = code.load(code.offset(source.pointer, "float32", at), kind)
    code.store(value, code.offset(target.pointer, "float32", at))
