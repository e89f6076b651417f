"""Base class of convolution functions: arguments, rows of the job, addresses."""

from abc import ABC, abstractmethod

from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.convolution.convolution_sizes import ConvolutionSizes
from csrun.compiler.emit.llvm.convolution.padded_plane import PaddedPlane
from csrun.compiler.emit.llvm.lane_values import INDEX, LaneValue
from csrun.compiler.emit.llvm.loops.nests import argument
from csrun.compiler.emit.llvm.module import KernelCode, function_text
from csrun.compiler.emit.llvm.products.matrices import Matrix, times
from csrun.compiler.emit.llvm.products.packed_products import ThreadScratch
from csrun.compiler.graph.array import Array
from csrun.compiler.kernels.convolution import Convolution

_ROWS = "ptr %arguments, i64 %first, i64 %last"


class ConvolutionWriter(ABC):
    """Writes the function of a kernel, row by row of its job.

    planes: scratch that is cleared before the first row.
    """

    def __init__(self, kernel: Convolution) -> None:
        self.code = Code()
        self.kernel = kernel
        self.sizes = ConvolutionSizes.of(kernel)
        self.parameters = (*kernel.reads, *kernel.writes)
        count = len(self.parameters)
        self.bases = {a: argument(self.code, n) for n, a in enumerate(self.parameters)}
        self.scratch = ThreadScratch(self.code, argument(self.code, count + 1))
        self.parts = argument(self.code, count + 2)
        self.planes: list[PaddedPlane] = []

    @property
    @abstractmethod
    def rows(self) -> int:
        """Number of rows of the job."""

    @property
    def parts_bytes(self) -> int:
        """Size of data that rows leave for the end of the job, in bytes."""
        return 0

    @abstractmethod
    def write_row(self, row: LaneValue) -> None:
        """Write the instructions of a row."""

    @property
    def begin_rows(self) -> int:
        """Number of rows of the preceding job, 0 without one."""
        return 0

    def begin_lines(self) -> list[str]:
        """Return the instructions of a row of the preceding job."""
        return []

    def end_lines(self) -> list[str]:
        """Return the instructions after all rows."""
        return []

    def finished(self, name: str) -> KernelCode:
        """Return the machine code."""
        code = self.code
        for plane in self.planes:
            plane.clear()
        with code.loop(LaneValue("%first", INDEX), LaneValue("%last", INDEX)) as row:
            self.write_row(row)
        lines = ["entry:", *code.entry, *code.lines, "  ret void"]
        texts = [function_text(name, _ROWS, lines)]
        if self.begin_rows:
            texts.append(function_text(f"{name}.begin", _ROWS, self.begin_lines()))
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
            has_epilogue=bool(end),
            rows=self.rows,
            begin_rows=self.begin_rows,
        )

    def image(self, sample: LaneValue, channel: LaneValue) -> Matrix:
        """Return the image of a sample and a channel."""
        return Matrix(self._plane_of(self.kernel.images, sample, channel), self.sizes.image[1])

    def map(self, sample: LaneValue, channel: LaneValue) -> Matrix:
        """Return the feature map of a sample and a channel."""
        return Matrix(self._plane_of(self.kernel.maps, sample, channel), self.sizes.places[1])

    def weight(self, output: LaneValue, channel: LaneValue) -> Matrix:
        """Return the weight from a map and a channel of its group on; one row per map."""
        weight = self.kernel.weight
        terms = (output, weight.strides[0]), (channel, self.sizes.taps)
        return Matrix(self.offset(self.bases[weight], *terms), weight.strides[0])

    def offset(self, pointer: str, *terms: tuple[LaneValue, int]) -> str:
        """Return an address from indices and strides."""
        for number, stride in terms:
            pointer = self.code.offset(pointer, "float32", times(self.code, number, stride))
        return pointer

    def _plane_of(self, array: Array, sample: LaneValue, channel: LaneValue) -> str:
        terms = (sample, array.strides[0]), (channel, array.strides[1])
        return self.offset(self.bases[array], *terms)
