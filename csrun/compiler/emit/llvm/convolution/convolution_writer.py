"""Base of the functions of a convolution by products: arguments, columns of a block, maps."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from math import prod

from csrun.compiler.emit.llvm.code import INDEX, LANES, Code, Kind, LaneValue, index
from csrun.compiler.emit.llvm.convolution.convolution_sizes import ConvolutionSizes, WindowBlock
from csrun.compiler.emit.llvm.convolution.padded_plane import PaddedPlane
from csrun.compiler.emit.llvm.convolution.pieces import MOST_PIECES
from csrun.compiler.emit.llvm.matrices import Matrix, each_vector, padded, times
from csrun.compiler.emit.llvm.module import KernelCode, function_text
from csrun.compiler.emit.llvm.nests import argument
from csrun.compiler.emit.llvm.packed_products import Products, ThreadScratch
from csrun.compiler.kernels.convolution import Convolution


class ConvolutionWriter(ABC):
    """Writes the function of a kernel, row after row of its job.

    panel: columns of a packed panel of products
    """

    def __init__(self, kernel: Convolution, panel: int) -> None:
        self.code = Code()
        self.sizes = ConvolutionSizes.of(kernel)
        self.panel = panel
        self.parameters = (*kernel.reads, *kernel.writes)
        count = len(self.parameters)
        self.bases = {a: argument(self.code, n) for n, a in enumerate(self.parameters)}
        self.scratch = ThreadScratch(self.code, argument(self.code, count + 1))
        self.parts = argument(self.code, count + 2)
        self.products = Products(self.code, self.scratch, panel)
        self.stride = padded(self.sizes.block_windows) + LANES  # of a row of columns
        self.kernel = kernel
        self.plane = None if self.sizes.is_plain else self._new_plane()

    @cached_property
    def map_rows(self) -> Matrix:
        """Scratch for rows of maps with the columns of a block."""
        return Matrix(self.scratch.take(4 * self.sizes.outputs * self.stride), self.stride)

    @property
    @abstractmethod
    def rows(self) -> int:
        """Rows of the job."""

    @property
    def parts_bytes(self) -> int:
        """Bytes of what rows leave to the end of the job."""
        return 0

    @abstractmethod
    def write_row(self, row: LaneValue) -> None:
        """Write the instructions of a row."""

    def end_lines(self) -> list[str]:
        """Return the instructions after all rows."""
        return []

    def finished(self, name: str) -> KernelCode:
        """The machine code."""
        code = self.code
        if self.plane is not None:
            self.plane.clear()
        with code.loop(LaneValue("%first", INDEX), LaneValue("%last", INDEX)) as row:
            self.write_row(row)
        lines = ["entry:", *code.entry, *code.lines, "  ret void"]
        texts = [function_text(name, "ptr %arguments, i64 %first, i64 %last", lines)]
        if end := self.end_lines():
            texts.append(function_text(f"{name}.end", "ptr %arguments", end))
        return KernelCode(
            name,
            "\n\n".join(texts),
            code.declared,
            self.parameters,
            (),
            self.scratch.nbytes,
            self.parts_bytes,
            cut=1,
            has_end=bool(end),
            rows=self.rows,
        )

    # Columns of a block: what its windows see, a row for each pixel of them.

    def _new_plane(self) -> PaddedPlane:
        """Scratch for the rows of an image that a block sees."""
        sizes = self.sizes
        places = sizes.block_rows, sizes.places[1]
        return PaddedPlane(self.code, self.scratch, sizes.image, sizes.windows, places)

    def image(self, sample: LaneValue, channel: LaneValue) -> Matrix:
        """The image of a sample and a channel."""
        images = self.kernel.images
        pointer = self.offset(self.bases[images], (sample, images.strides[0]))
        return Matrix(self.offset(pointer, (channel, images.strides[1])), self.sizes.image[1])

    def weight(self, output: LaneValue, channel: LaneValue) -> Matrix:
        """The weight from a map and a channel of its group on: a row for each map."""
        weight = self.kernel.weight
        terms = (output, weight.strides[0]), (channel, self.sizes.taps)
        return Matrix(self.offset(self.bases[weight], *terms), weight.strides[0])

    def maps(self, block: WindowBlock, channel: LaneValue, sample: LaneValue) -> Matrix:
        """Places of a block in the maps of one of its samples, from a channel on."""
        maps = self.kernel.maps
        sample = self.code.op("add", block.sample, sample)
        pointer = self.offset(self.bases[maps], (sample, maps.strides[0]))
        terms = (channel, maps.strides[1]), (block.row, self.sizes.places[1])
        return Matrix(self.offset(pointer, *terms), maps.strides[1])

    def offset(self, pointer: str, *terms: tuple[LaneValue, int]) -> str:
        """An address, from numbers and their strides."""
        for number, stride in terms:
            pointer = self.code.offset(pointer, "float32", times(self.code, number, stride))
        return pointer

    @contextmanager
    def each_tap(self) -> Iterator[tuple[LaneValue, LaneValue, LaneValue]]:
        """Pixels of a window: number, row, column."""
        code, (rows, columns) = self.code, self.sizes.windows.size
        with code.loop(index(0), index(rows)) as i, code.loop(index(0), index(columns)) as j:
            yield code.op("add", times(code, i, columns), j), i, j

    @contextmanager
    def each_sample(self, block: WindowBlock) -> Iterator[tuple[LaneValue, LaneValue]]:
        """Samples of a block: number, and its first column."""
        with self.code.loop(index(0), block.samples) as sample:
            yield sample, times(self.code, sample, prod(self.sizes.places))

    def write_columns(self, block: WindowBlock, channel: LaneValue, target: str) -> None:
        """What the windows of a block see of a channel."""
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
        """Copy numbers; vectors are written behind the last one."""
        row, own = Matrix(source, 0), Matrix(target, 0)
        code = self.code
        each_vector(
            code, count, lambda at, mask: own.store(code, row.load(code, at, mask), at, None)
        )

    def _copy_seen(self, seen: Matrix, own: Matrix, rows: LaneValue) -> None:
        """Copy in whole vectors: what is behind a row is overwritten by the next one."""
        code, width = self.code, self.sizes.places[1]
        kind = Kind("float32", lanes_of(width))

        def copy(at: LaneValue) -> None:
            value = code.load(seen.at(code, row, at).pointer, kind)
            code.store(value, own.at(code, row, at).pointer)

        with code.loop(index(0), rows) as row:
            if width <= LANES * MOST_PIECES:
                for at in range(0, width, kind.lanes):
                    copy(index(at))
            else:
                with code.loop(index(0), index(width), kind.lanes) as place:
                    copy(place)

    def map_matrix(self, block: WindowBlock, first: LaneValue) -> Matrix:
        """Maps of a group as rows with the columns of a block."""
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


def lanes_of(width: int) -> int:
    """Lanes of vectors for rows of so many numbers: those that hold a row, or 16."""
    return min(1 << (width - 1).bit_length(), LANES)
