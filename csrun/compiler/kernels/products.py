"""Matrix products of any two operands, read and written as they lie in memory."""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Self

from xdsl.ir import Operation

from csrun.cirh.ops.products import AddProductOp, MatmulOp, MmOp
from csrun.compiler.graph.accumulate import add_product, tile_of
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name, Phase


@dataclass(frozen=True)
class Product(Kernel):
    """out = a b; NumPy gives BLAS the strides of all three matrices, and copies none.

    With `adds` the product is added to what is there.

    Shapes: a [..., M, K], b [..., K, N] -> out [..., M, N], leading axes broadcast
    """

    a: Array
    b: Array
    out: Array
    phase: Phase
    adds: bool = False

    kind = "product"

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.a, self.b

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """A tile of the product, before it is added."""
        return (tile_of(self.out, self.layer),) if self.adds else ()

    @property
    def flops(self) -> int:
        """Two for each multiply-add."""
        return 2 * prod(self.out.shape) * self.a.shape[-1]

    def adding(self) -> Self:
        return replace(self, adds=True)

    def emit(self, name: Name) -> list[str]:
        if self.adds:
            tile = tile_of(self.out, self.layer)
            return add_product(self.a, self.b, self.out, tile, name)
        out = name(self.out)
        shapes = " x ".join(str(list(array.shape)) for array in (self.a, self.b))
        return [f"matmul({name(self.a)}, {name(self.b)}, out={out})  # {shapes}"]


def match_product(operation: Operation, graph: Graph) -> Kernel:
    """Any product."""
    assert isinstance(operation, MmOp | MatmulOp)
    graph.take(operation)
    return Product(
        graph.layer_of(operation),
        a=graph.array(operation.lhs),
        b=graph.array(operation.rhs),
        out=graph.array(operation.out),
        phase=graph.phase_of(operation),
    )


@dataclass(frozen=True)
class AddedProduct(Product):
    """out = before + a b, mostly where the other lies: then it is added there, a tile at a time."""

    before: Array = field(kw_only=True)

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.a, self.b, self.before

    def emit(self, name: Name) -> list[str]:
        copied = self.before != self.out
        copy = [f"copyto({name(self.out)}, {name(self.before)})"] if copied else []
        return [*copy, *super().emit(name)]


def match_added(operation: Operation, graph: Graph) -> Kernel:
    assert isinstance(operation, AddProductOp)
    graph.take(operation)
    return AddedProduct(
        graph.layer_of(operation),
        a=graph.array(operation.lhs),
        b=graph.array(operation.rhs),
        out=graph.array(operation.out),
        phase=graph.phase_of(operation),
        adds=True,
        before=graph.array(operation.before),
    )


MATCHERS: dict[str, Matcher] = {
    MmOp.name: match_product,
    MatmulOp.name: match_product,
    AddProductOp.name: match_added,
}
