"""Matrix products of any two operands, read and written as they lie in memory."""

from dataclasses import dataclass, replace
from math import prod
from typing import Self

from xdsl.ir import Operation

from csrun.cirh.ops.arithmetic import AddmmOp, MatmulOp, MmOp
from csrun.compiler.accumulate import add_product, tile_of
from csrun.compiler.array import Array
from csrun.compiler.graph import Graph
from csrun.compiler.kernels.base import Kernel, Matcher, Name, Phase


@dataclass(frozen=True)
class Product(Kernel):
    """out = a b + bias; NumPy gives BLAS the strides of all three matrices, and copies none.

    With `adds` the product, which has no bias, is added to what is there.

    Shapes: a [..., M, K], b [..., K, N], bias [N] -> out [..., M, N], leading axes broadcast
    """

    a: Array
    b: Array
    bias: Array | None
    out: Array
    phase: Phase
    adds: bool = False

    kind = "product"

    @property
    def reads(self) -> tuple[Array, ...]:
        return (self.a, self.b) if self.bias is None else (self.a, self.b, self.bias)

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """A tile of the product, before it is added."""
        return (tile_of(self.out, self.layer),) if self.adds else ()

    @property
    def flops(self) -> int:
        """Two for each multiply-add, one for each bias."""
        return prod(self.out.shape) * (2 * self.a.shape[-1] + (self.bias is not None))

    def adding(self) -> Self:
        return replace(self, adds=True)

    def emit(self, name: Name) -> list[str]:
        if self.adds:
            tile = tile_of(self.out, self.layer)
            return add_product(self.a, self.b, self.out, tile, name)
        out = name(self.out)
        shapes = " x ".join(str(list(array.shape)) for array in (self.a, self.b))
        lines = [f"matmul({name(self.a)}, {name(self.b)}, out={out})  # {shapes}"]
        if self.bias is not None:
            lines.append(f"add({out}, {name(self.bias)}, out={out})")
        return lines


def match_product(operation: Operation, graph: Graph) -> Kernel:
    """Any product."""
    assert isinstance(operation, MmOp | AddmmOp | MatmulOp)
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


MATCHERS: dict[str, Matcher] = {MatmulOp.name: match_product}
