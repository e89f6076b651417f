"""Machine code of attention, forward and backward; a row of a call is a pair of sample and head.

Blocks of queries are computed one after the other, each with full rows of scores, as in
`csrun.kernels.attention`; matrix products call functions of `csrun.compiler.emit.llvm.products`.
"""

from csrun.compiler.emit.llvm.attention.attention_sizes import AttentionSizes
from csrun.compiler.emit.llvm.attention.backward_pass import BackwardWriter
from csrun.compiler.emit.llvm.attention.forward_pass import ForwardWriter
from csrun.compiler.emit.llvm.module import KernelCode, function_text
from csrun.compiler.graph.kernel import Phase
from csrun.compiler.kernels.attention import Attention
from csrun.executable import machine_code
from csrun.executable.products import BLOCK_K, Tile, tile_of


def attention_code(kernel: Attention, name: str, tile: Tile | None = None) -> KernelCode | None:
    """Return the machine code of a kernel, under this name; None if it has no such form.

    tile: tile of the matrix products; None: that of the host.
    """
    if not _has_form(kernel):
        return None
    kind = ForwardWriter if kernel.phase is Phase.FORWARD else BackwardWriter
    writer = kind(kernel, (tile or tile_of(machine_code.host())).columns)
    text = function_text(name, "ptr %arguments, i64 %first, i64 %last", writer.lines())
    return KernelCode(
        name,
        text,
        writer.code.declared,
        writer.parameters,
        writer.numbers,
        writer.scratch.nbytes,
        parts_bytes=0,
        cut=1,
        has_epilogue=False,
        rows=writer.pairs,
    )


def _has_form(kernel: Attention) -> bool:
    """Return whether all arrays are float32 and not empty; a mask may be boolean."""
    arrays = (*kernel.operands, *kernel.results)
    sizes = AttentionSizes.of(kernel)
    return (
        all(array.dtype == "float32" and 0 not in array.shape for array in arrays)
        and (kernel.mask is None or kernel.mask.dtype in ("float32", "bool"))
        # If k is one block, scores of the first keys are the first panels.
        and max(sizes.size, sizes.value_size) <= BLOCK_K
    )
