"""A value that the host gets, copied to where it stays until the step is over."""

from dataclasses import dataclass

from csrun.cirh.ops.model import OutputOp
from csrun.compiler.array import Array
from csrun.compiler.graph import Graph
from csrun.compiler.kernels.base import Name, UnaryKernel


@dataclass(frozen=True)
class CopyOut(UnaryKernel):
    """out = x; an input of the batch or a buffer may be overwritten before the host reads it.

    Shapes: x, out of one shape
    """

    kind = "output"

    def emit(self, name: Name) -> list[str]:
        """One call."""
        return [f"copyto({name(self.out)}, {name(self.x)})"]


def copy_out(operation: OutputOp, graph: Graph) -> CopyOut:
    """The kernel of an output."""
    x = graph.array(operation.value)
    name = f"output/{operation.symbol.data}"
    return CopyOut(graph.layer_of(operation), x, Array(name, x.shape, x.dtype))
