"""Sizes of a convolution, and its blocks of windows."""

from dataclasses import dataclass
from math import prod
from typing import Self

from csrun.cirh.ops.convolution import Windows
from csrun.compiler.emit.llvm.code import Code
from csrun.compiler.emit.llvm.lane_values import LaneValue, index
from csrun.compiler.emit.llvm.products.matrices import smaller, times
from csrun.compiler.kernels.convolution import PIXEL, Convolution

Pair = tuple[int, int]

BLOCK_WINDOWS = 512  # windows of a block, unless a row of an image has more
LEAST_BLOCKS = 16  # blocks per thread, so that threads share samples evenly
LEAST_WORK = 1 << 20  # multiplications of a block: 25 us


@dataclass(frozen=True)
class WindowBlock:
    """Windows that form the columns of one matrix: whole samples, or rows of one sample.

    sample: the first sample.
    row, rows: rows of windows in each sample.
    count: number of windows.
    """

    sample: LaneValue
    samples: LaneValue
    row: LaneValue
    rows: LaneValue
    count: LaneValue


@dataclass(frozen=True)
class ConvolutionSizes:
    """Sizes of a convolution of [N, G C, H, W] to [N, G O, H', W'].

    inputs, outputs: channels of a group, C and O.
    block_samples, block_rows: size of a block; it has one sample, or all rows of windows.
    """

    samples: int
    groups: int
    inputs: int
    outputs: int
    image: Pair
    places: Pair
    windows: Windows
    block_samples: int
    block_rows: int

    @classmethod
    def of(cls, kernel: Convolution) -> Self:
        """Return the sizes of a kernel."""
        samples, channels, height, width = kernel.images.shape
        outputs, *found = kernel.maps.shape[1:]
        image, places, w = (height, width), (found[0], found[1]), kernel.windows
        if w == PIXEL and prod(image) <= BLOCK_WINDOWS:
            image = places = 1, prod(image)
        blocks = -(-prod(places) // BLOCK_WINDOWS)
        rows = -(-places[0] // blocks)
        each = max(BLOCK_WINDOWS // prod(places), 1)
        work = prod(kernel.maps.shape[1:]) * prod(kernel.weight.shape[1:])
        each = min(each, max(-(-samples // LEAST_BLOCKS), -(-LEAST_WORK // max(work, 1))))
        each = min(each, samples) if blocks == 1 else 1
        sizes = samples, kernel.groups, channels // kernel.groups, outputs // kernel.groups
        return cls(*sizes, image, places, w, each, rows)

    @property
    def taps(self) -> int:
        """Number of pixels of a window."""
        return prod(self.windows.size)

    @property
    def depth(self) -> int:
        """Number of values that a window reads in all channels of its group."""
        return self.inputs * self.taps

    @property
    def is_plain(self) -> bool:
        """Return whether the windows of a sample are its pixels (a 1 x 1 convolution)."""
        return self.windows == PIXEL

    @property
    def sample_blocks(self) -> int:
        """Number of blocks of a sample, or of a block's samples."""
        return -(-self.places[0] // self.block_rows)

    @property
    def blocks(self) -> int:
        """Number of blocks of all samples."""
        return -(-self.samples // self.block_samples) * self.sample_blocks

    @property
    def block_windows(self) -> int:
        """Maximum number of windows of a block."""
        return self.block_samples * self.block_rows * self.places[1]

    def block(self, code: Code, number: LaneValue) -> WindowBlock:
        """Return the block with an index."""
        group = code.op("udiv", number, index(self.sample_blocks))
        part = code.op("urem", number, index(self.sample_blocks))
        sample = times(code, group, self.block_samples)
        left = code.op("sub", index(self.samples), sample)
        samples = smaller(code, left, index(self.block_samples))
        row = times(code, part, self.block_rows)
        rows = smaller(code, code.op("sub", index(self.places[0]), row), index(self.block_rows))
        count = code.op("mul", samples, times(code, rows, self.places[1]))
        return WindowBlock(sample, samples, row, rows, count)
