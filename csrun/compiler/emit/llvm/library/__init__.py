"""Machine code of the kernel library: one file per family; each kernel class has a builder."""

from collections.abc import Callable
from typing import Any

from csrun.compiler.emit.llvm.attention import attention_code
from csrun.compiler.emit.llvm.convolution import convolution_code
from csrun.compiler.emit.llvm.lane_values import NoMachineCodeError
from csrun.compiler.emit.llvm.library.argmax import argmax_code
from csrun.compiler.emit.llvm.library.assembly import assembly_code, copy_code
from csrun.compiler.emit.llvm.library.batch_norm import batch_norm_code
from csrun.compiler.emit.llvm.library.dropout import mask_code, uniform_code
from csrun.compiler.emit.llvm.library.embedding import (
    lookup_backward_code,
    lookup_code,
    lookup_part_code,
)
from csrun.compiler.emit.llvm.library.lookups import indexing_code
from csrun.compiler.emit.llvm.library.losses import loss_of_mean_code, loss_sum_code
from csrun.compiler.emit.llvm.library.normalization import norm_code
from csrun.compiler.emit.llvm.library.pooling import average_pool_code, max_pool_code
from csrun.compiler.emit.llvm.library.rotary import rotary_code
from csrun.compiler.emit.llvm.library.softmax import softmax_code
from csrun.compiler.emit.llvm.module import KernelCode
from csrun.compiler.graph.kernel import Kernel
from csrun.compiler.kernels.attention import Attention
from csrun.compiler.kernels.batch_norm import BatchNorm
from csrun.compiler.kernels.concatenation import Assembly
from csrun.compiler.kernels.convolution import (
    Convolve,
    ConvolveBackwardInput,
    ConvolveBackwardWeight,
)
from csrun.compiler.kernels.dropout import DropoutMask, Uniform
from csrun.compiler.kernels.embedding import Lookup, LookupBackward
from csrun.compiler.kernels.indexing import Indexing
from csrun.compiler.kernels.normalization import Norm
from csrun.compiler.kernels.outputs import Argmax, CopyOut, LossOfMean
from csrun.compiler.kernels.pooling import AveragePool, MaxPool
from csrun.compiler.kernels.rotary import Rotary
from csrun.compiler.kernels.softmax import Softmax
from csrun.compiler.kernels.softmax_cross_entropy import LossSum
from csrun.compiler.kernels.vocab_shards import LookupPart, LookupPartBackward

#: The builder of each class of kernels.
BUILDERS: dict[type[Kernel], Callable[[Any, str], KernelCode | None]] = {
    Attention: attention_code,
    Norm: norm_code,
    Softmax: softmax_code,
    Lookup: lookup_code,
    LookupPart: lookup_part_code,
    LookupBackward: lookup_backward_code,
    LookupPartBackward: lookup_backward_code,
    Indexing: indexing_code,
    Assembly: assembly_code,
    DropoutMask: mask_code,
    Uniform: uniform_code,
    Rotary: rotary_code,
    BatchNorm: batch_norm_code,
    MaxPool: max_pool_code,
    AveragePool: average_pool_code,
    Convolve: convolution_code,
    ConvolveBackwardInput: convolution_code,
    ConvolveBackwardWeight: convolution_code,
    Argmax: argmax_code,
    CopyOut: copy_code,
    LossSum: loss_sum_code,
    LossOfMean: loss_of_mean_code,
}


def library_code(kernel: Kernel, name: str) -> KernelCode | None:
    """Return the machine code of a kernel, under this name; None if it has no such form."""
    builder = BUILDERS.get(type(kernel))
    if builder is None or any(0 in array.shape for array in (*kernel.reads, *kernel.writes)):
        return None
    try:
        return builder(kernel, name)
    except NoMachineCodeError:  # an element type without instructions
        return None
