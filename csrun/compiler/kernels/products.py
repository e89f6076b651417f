"""Matrix products of any two operands, read and written as they lie in memory."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.arithmetic import AddmmOp, MmOp
from csrun.compiler.array import Array
from csrun.compiler.graph import Graph
from csrun.compiler.kernels.base import Kernel, Name, Phase


@dataclass(frozen=True)
class Product(Kernel):
    """out = a b + bias; NumPy gives BLAS the strides of all three matrices, and copies none.

    Shapes: a [M, K], b [K, N], bias [N] -> out [M, N]
    """

    a: Array
    b: Array
    bias: Array | None
    out: Array
    phase: Phase

    kind = "product"

    @property
    def reads(self) -> tuple[Array, ...]:
        return (self.a, self.b) if self.bias is None else (self.a, self.b, self.bias)

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    @property
    def flops(self) -> int:
        """Two for each multiply-add, one for each bias."""
        return prod(self.out.shape) * (2 * self.a.shape[-1] + (self.bias is not None))

    def emit(self, name: Name) -> list[str]:
        out = name(self.out)
        shapes = " x ".join(str(list(array.shape)) for array in (self.a, self.b))
        lines = [f"matmul({name(self.a)}, {name(self.b)}, out={out})  # {shapes}"]
        if self.bias is not None:
            lines.append(f"add({out}, {name(self.bias)}, out={out})")
        return lines


def match_product(operation: Operation, graph: Graph) -> Kernel:
    """Any product."""
    assert isinstance(operation, MmOp | AddmmOp)
    graph.take(operation)
    bias = operation.bias if isinstance(operation, AddmmOp) else None
    return Product(
        graph.layer_of(operation),
        a=graph.array(operation.lhs),
        b=graph.array(operation.rhs),
        bias=None if bias is None else graph.array(bias),
        out=graph.array(operation.out),
        phase=graph.phase_of(operation),
    )
