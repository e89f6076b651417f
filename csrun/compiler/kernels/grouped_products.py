"""Products of groups of rows, each group with a matrix of its own."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.grouped_products import GroupedMmOp, GroupedOuterOp
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import FunctionKernel, Kernel, Matcher, Name, Phase


@dataclass(frozen=True)
class GroupedProduct(FunctionKernel):
    """One of the functions of `csrun.kernels.grouped_products`.

    Shapes: x [M, K], matrices [G, K, N], ends [G] -> out [M, N]; of the outer products
    lhs [M, K], rhs [K, N], ends [G] -> out [G, M, N]
    """

    function: str
    phase: Phase

    kind = "product"

    @property
    def flops(self) -> int:
        """Two for each multiply-add: each row is multiplied once, in whatever group."""
        lhs, rhs, _ = self.operands
        return 2 * prod(lhs.shape) * rhs.shape[-1]

    def prepare(self, name: Name) -> list[str]:
        return ["from csrun.kernels import grouped_products"]

    def emit(self, name: Name) -> list[str]:
        arrays = ", ".join(map(name, (*self.operands, *self.results)))
        return [f"grouped_products.{self.function}({arrays})"]


def match_grouped(operation: Operation, graph: Graph) -> Kernel:
    """Match the single operator."""
    assert isinstance(operation, GroupedMmOp | GroupedOuterOp)
    graph.take(operation)
    return GroupedProduct(
        graph.layer_of(operation),
        tuple(map(graph.array, operation.operands)),
        (graph.array(operation.out),),
        operation.name.removeprefix("cirh."),
        graph.phase_of(operation),
    )


MATCHERS: dict[str, Matcher] = {
    GroupedMmOp.name: match_grouped,
    GroupedOuterOp.name: match_grouped,
}
