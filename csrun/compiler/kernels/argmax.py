"""The index of the largest value of each row."""

from dataclasses import dataclass

from xdsl.ir import Operation

from csrun.cirh.ops.arithmetic import ArgmaxOp
from csrun.compiler.graph import Graph
from csrun.compiler.kernels.base import Kernel, Matcher, Name, UnaryKernel


@dataclass(frozen=True)
class Argmax(UnaryKernel):
    """out = argmax of x along `dim`.

    Shapes: x [..., N, ...] -> out [..., ...] int64
    """

    dim: int

    kind = "argmax"

    def emit(self, name: Name) -> list[str]:
        return [f"{name(self.x)}.argmax({self.dim}, out={name(self.out)})"]


def match(operation: Operation, graph: Graph) -> Kernel | None:
    assert isinstance(operation, ArgmaxOp)
    graph.take(operation)
    return Argmax(
        graph.layer_of(operation),
        graph.array(operation.x),
        graph.array(operation.out),
        operation.dim.value.data,
    )


MATCHERS: dict[str, Matcher] = {ArgmaxOp.name: match}
