"""Depthwise convolution: loops over the rows of padded planes instead of matrix products.

The sum of an output adds its pixels in order. Sums of the weight's gradient have one accumulator
per lane; these are added over rows, then samples, then lanes.
"""

from abc import ABC
from collections.abc import Callable, Sequence

from csrun.cirh.ops.convolution import Windows
from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.convolution.convolution_sizes import Pair
from csrun.compiler.emit.llvm.convolution.convolution_writer import ConvolutionWriter
from csrun.compiler.emit.llvm.convolution.padded_plane import PaddedPlane
from csrun.compiler.emit.llvm.convolution.pieces import (
    MOST_PIECES,
    clear_image,
    each_piece,
    lanes_of,
)
from csrun.compiler.emit.llvm.lane_values import LANES, Kind, LaneValue, index
from csrun.compiler.emit.llvm.loops.row_sums import add_lanes
from csrun.compiler.emit.llvm.products.matrices import FLOAT, Matrix, times
from csrun.compiler.emit.llvm.products.packed_products import ThreadScratch
from csrun.compiler.kernels.convolution import (
    Convolution,
    Convolve,
    ConvolveBackwardInput,
    ConvolveBackwardWeight,
)

MOST_TAPS = 49  # pixels of a window up to which the loop is unrolled


class _Convolver:
    """Convolution of a plane: from images to outputs or, with the flipped weight, back."""

    def __init__(
        self, code: Code, scratch: ThreadScratch, image: Pair, windows: Windows, places: Pair
    ) -> None:
        self._code = code
        self._windows = windows
        self._places = places
        self.plane = PaddedPlane(code, scratch, image, windows, places)

    def write(self, weights: Sequence[LaneValue], first: LaneValue, target: Matrix) -> None:
        """Store the sums of the plane's pixels times weights, starting from an initial value."""
        code, (rows, width) = self._code, self._places
        kind = Kind("float32", lanes_of(width))
        lanes = [code.splat(value, kind.lanes) for value in (*weights, first)]
        with code.loop(index(0), index(rows)) as row:

            def store(at: LaneValue, count: int) -> None:
                total = lanes[-1]
                for (i, j), weight in zip(self._taps, lanes, strict=False):
                    start = Matrix(self.plane.fixed_tap(i, j), self.plane.row_step)
                    value = code.load(start.at(code, row, at).pointer, kind)
                    total = code.call("fma", value, weight, total)
                code.store(total, target.at(code, row, at).pointer, _mask(code, count, kind))

            _each_vector(code, width, kind.lanes, store)

    @property
    def _taps(self) -> list[Pair]:
        rows, columns = self._windows.size
        return [(i, j) for i in range(rows) for j in range(columns)]


class _DepthwiseWriter(ConvolutionWriter, ABC):
    """Base of functions whose rows are pairs of a sample and a channel."""

    def __init__(self, kernel: Convolution, panel: int) -> None:
        super().__init__(kernel)

    @property
    def rows(self) -> int:
        return self.sizes.samples * self.sizes.groups

    def pair(self, row: LaneValue) -> tuple[LaneValue, LaneValue]:
        """Return the sample and the channel of a row."""
        sample, channel = (
            self.code.op(how, row, index(self.sizes.groups)) for how in ("udiv", "urem")
        )
        return sample, channel

    def numbers(self, channel: LaneValue) -> list[LaneValue]:
        """Return the weight of a channel."""
        weight = self.weight(channel, index(0))
        taps = range(self.sizes.taps)
        return [self.code.load(self.offset(weight.pointer, (index(n), 1)), FLOAT) for n in taps]


class DepthwiseConvolveWriter(_DepthwiseWriter):
    """Writes the function of a convolution."""

    def __init__(self, kernel: Convolve, panel: int) -> None:
        super().__init__(kernel, panel)
        sizes = self.sizes
        self._bias = kernel.bias
        self._convolver = _Convolver(
            self.code, self.scratch, sizes.image, sizes.windows, sizes.places
        )
        self.planes.append(self._convolver.plane)

    def write_row(self, row: LaneValue) -> None:
        code, rows = self.code, index(self.sizes.places[0])
        sample, channel = self.pair(row)
        bias = code.constant(0.0, FLOAT)
        if self._bias is not None:
            place = self.offset(self.bases[self._bias], (channel, self._bias.strides[0]))
            bias = code.load(place, FLOAT)
        self._convolver.plane.read(self.image(sample, channel), index(0), rows)
        self._convolver.write(self.numbers(channel), bias, self.map(sample, channel))


class DepthwiseFlippedWriter(_DepthwiseWriter):
    """Writes the function of the images' gradient for windows at every pixel."""

    def __init__(self, kernel: ConvolveBackwardInput, panel: int) -> None:
        super().__init__(kernel, panel)
        sizes, w = self.sizes, kernel.windows
        windows = Windows(w.size, w.stride, kernel.flipped_padding, w.dilation)
        self._convolver = _Convolver(self.code, self.scratch, sizes.places, windows, sizes.image)
        self.planes.append(self._convolver.plane)

    def write_row(self, row: LaneValue) -> None:
        sample, channel = self.pair(row)
        plane, rows = self._convolver.plane, index(self.sizes.image[0])
        plane.read(self.map(sample, channel), index(0), rows)
        weights, zero = self.numbers(channel)[::-1], self.code.constant(0.0, FLOAT)
        self._convolver.write(weights, zero, self.image(sample, channel))


class DepthwiseInputWriter(_DepthwiseWriter):
    """Writes the function of the images' gradient: each window adds to its pixels."""

    def __init__(self, kernel: ConvolveBackwardInput, panel: int) -> None:
        super().__init__(kernel, panel)
        sizes = self.sizes
        self._plane = PaddedPlane(self.code, self.scratch, sizes.image, sizes.windows, sizes.places)

    def write_row(self, row: LaneValue) -> None:
        code, sizes, plane = self.code, self.sizes, self._plane
        sample, channel = self.pair(row)
        source, weights = self.map(sample, channel), self.weight(channel, index(0))
        plane.clear()
        (rows, columns), places = sizes.windows.size, sizes.places
        with code.loop(index(0), index(rows)) as i, code.loop(index(0), index(columns)) as j:
            tap = code.op("add", times(code, i, columns), j)
            weight = code.load(self.offset(weights.pointer, (tap, 1)), FLOAT)
            target = Matrix(plane.tap(i, j), plane.row_step)
            with code.loop(index(0), index(places[0])) as y:
                read, written = source.at(code, y), target.at(code, y)

                def add(at: LaneValue, kind: Kind) -> None:
                    value = code.load(code.offset(read.pointer, "float32", at), kind)
                    place = code.offset(written.pointer, "float32", at)
                    factor = code.splat(weight, kind.lanes)
                    code.store(code.call("fma", value, factor, code.load(place, kind)), place)

                each_piece(code, places[1], add)
        image = self.image(sample, channel)
        clear_image(code, image, sizes.image)
        plane.add_to(image, index(0), index(places[0]))


class DepthwiseWeightWriter(ConvolutionWriter):
    """Writes the function of the weight's gradient: a row is a channel, over all samples."""

    def __init__(self, kernel: ConvolveBackwardWeight, panel: int) -> None:
        super().__init__(kernel)
        sizes = self.sizes
        self._adds = kernel.adds
        self._kind = Kind("float32", lanes_of(sizes.places[1]))
        self._plane = PaddedPlane(self.code, self.scratch, sizes.image, sizes.windows, sizes.places)
        self.planes.append(self._plane)
        self._sums = Matrix(self.scratch.take(4 * sizes.taps * LANES), LANES)

    @property
    def rows(self) -> int:
        return self.sizes.groups

    def write_row(self, row: LaneValue) -> None:
        code, sizes = self.code, self.sizes
        zero = code.constant(0.0, self._kind)
        with code.loop(index(0), index(sizes.taps)) as tap:
            code.store(zero, self._sums.at(code, tap).pointer)
        with code.loop(index(0), index(sizes.samples)) as sample:
            self._plane.read(self.image(sample, row), index(0), index(sizes.places[0]))
            with code.loop(index(0), index(sizes.windows.size[0])) as i:
                self._add_row(i, self.map(sample, row))
        target = self.weight(row, index(0)).pointer
        with code.loop(index(0), index(sizes.taps)) as tap:
            total = add_lanes(code, code.load(self._sums.at(code, tap).pointer, self._kind))
            place = self.offset(target, (tap, 1))
            if self._adds:
                total = code.op("fadd", code.load(place, FLOAT), total)
            code.store(total, place)

    def _add_row(self, i: LaneValue, grad: Matrix) -> None:
        """Add to the sums of a row of the window."""
        code, columns, plane = self.code, self.sizes.windows.size[1], self._plane
        own = self._sums.at(code, times(code, i, columns))
        places = [own.at(code, index(j)).pointer for j in range(columns)]
        sums = [code.slot(code.load(place, self._kind)) for place in places]
        starts = [Matrix(plane.tap(i, index(j)), plane.row_step) for j in range(columns)]
        rows, width = self.sizes.places
        with code.loop(index(0), index(rows)) as row:

            def add(at: LaneValue, count: int) -> None:
                mask = _mask(code, count, self._kind)
                slope = code.load(grad.at(code, row, at).pointer, self._kind, mask)
                for slot, start in zip(sums, starts, strict=True):
                    value = code.load(start.at(code, row, at).pointer, self._kind)
                    code.set(slot, code.call("fma", slope, value, code.get(slot, self._kind)))

            _each_vector(code, width, self._kind.lanes, add)
        for slot, place in zip(sums, places, strict=True):
            code.store(code.get(slot, self._kind), place)


def _mask(code: Code, count: int, kind: Kind) -> LaneValue | None:
    """Return the mask of the first lanes, if they are not all."""
    return None if count == kind.lanes else code.first_lanes(count, kind.lanes)


def _each_vector(
    code: Code, width: int, lanes: int, body: Callable[[LaneValue, int], None]
) -> None:
    """Write instructions for the vectors of a row, each with its number of lanes."""
    full = width // lanes * lanes
    if full // lanes > MOST_PIECES:
        with code.loop(index(0), index(full), lanes) as place:
            body(place, lanes)
    else:
        for at in range(0, full, lanes):
            body(index(at), lanes)
    if width > full:
        body(index(full), width - full)
