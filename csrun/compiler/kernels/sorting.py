"""Order of values along an axis."""

from dataclasses import dataclass

from xdsl.ir import Operation

from csrun.cirh.ops.base import integer
from csrun.cirh.ops.sorting import ArgsortOp
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name, UnaryKernel


@dataclass(frozen=True)
class Argsort(UnaryKernel):
    """out = indices along `dim` in the order of the values of x.

    Shapes: x [..., N, ...] -> out [..., N, ...] int64
    """

    dim: int
    is_descending: bool

    kind = "sort"

    def prepare(self, name: Name) -> list[str]:
        return ["from csrun.kernels import sorting"]

    def emit(self, name: Name) -> list[str]:
        arrays = f"{name(self.x)}, {name(self.out)}"
        return [f"sorting.argsort({arrays}, {self.dim}, {self.is_descending})"]


def match_argsort(operation: Operation, graph: Graph) -> Kernel:
    """Match the single operator."""
    assert isinstance(operation, ArgsortOp)
    graph.take(operation)
    return Argsort(
        graph.layer_of(operation),
        graph.array(operation.x),
        graph.array(operation.out),
        integer(operation.properties, "dim"),
        bool(integer(operation.properties, "descending")),
    )


MATCHERS: dict[str, Matcher] = {ArgsortOp.name: match_argsort}
