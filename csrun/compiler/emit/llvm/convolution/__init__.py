"""Machine code of convolutions and their gradients, as matrix products over blocks of windows.

The pixels of windows are written block by block as columns of a matrix, in a thread's scratch;
matrix products call functions of `csrun.compiler.emit.llvm.products.product_functions`.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from csrun.compiler.emit.llvm.convolution import depthwise
from csrun.compiler.emit.llvm.convolution.convolution_writer import ConvolutionWriter
from csrun.compiler.emit.llvm.convolution.forward import ConvolveWriter, FlippedWriter
from csrun.compiler.emit.llvm.convolution.gradients import (
    InputGradientWriter,
    WeightGradientWriter,
)
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.graph.array import contiguous
from csrun.compiler.kernels.convolution import (
    Convolution,
    Convolve,
    ConvolveBackwardInput,
    ConvolveBackwardWeight,
)
from csrun.executable import machine_code
from csrun.executable.products import BLOCK_K, Tile, tile_of

MOST_SCRATCH_BYTES = 16 << 20  # scratch of a thread, which must hold a row of windows

_Writer = Callable[[Any, int], ConvolutionWriter]
_BY_PRODUCTS: dict[type[Convolution], _Writer] = {
    Convolve: ConvolveWriter,
    ConvolveBackwardInput: InputGradientWriter,
    ConvolveBackwardWeight: WeightGradientWriter,
}
_BY_CHANNEL: dict[type[Convolution], _Writer] = {
    Convolve: depthwise.DepthwiseConvolveWriter,
    ConvolveBackwardInput: depthwise.DepthwiseInputWriter,
    ConvolveBackwardWeight: depthwise.DepthwiseWeightWriter,
}


def convolution_code(kernel: Convolution, name: str, tile: Tile | None = None) -> KernelCode | None:
    """Return the machine code of a kernel, under this name; None if it has no such form.

    tile: tile of the matrix products; None: that of the host.
    """
    if not _has_form(kernel):
        return None
    panel = (tile or tile_of(machine_code.host())).columns
    code = _writer_of(kernel)(kernel, panel).finished(name)
    return code if code.scratch_bytes <= MOST_SCRATCH_BYTES else None


def _writer_of(kernel: Convolution) -> _Writer:
    """Return the writer of a kernel's function."""
    outputs, inputs, *size = kernel.weight.shape
    is_depthwise = inputs == 1 and outputs == kernel.groups
    is_depthwise = is_depthwise and prod(size) <= depthwise.MOST_TAPS
    if isinstance(kernel, ConvolveBackwardInput) and kernel.is_flipped:
        return depthwise.DepthwiseFlippedWriter if is_depthwise else FlippedWriter
    return (_BY_CHANNEL if is_depthwise else _BY_PRODUCTS)[type(kernel)]


def _has_form(kernel: Convolution) -> bool:
    """Return whether all arrays are float32 and images are contiguous."""
    arrays = (*kernel.reads, *kernel.writes)
    planes = [(a.strides[2:], a.shape[2:]) for a in (kernel.images, kernel.maps)]
    weight = kernel.weight
    return (
        all(array.dtype == "float32" for array in arrays)
        and all(strides == contiguous(shape) for strides, shape in planes)
        and weight.strides[1:] == contiguous(weight.shape[1:])
        and prod(kernel.windows.size) <= BLOCK_K
    )
