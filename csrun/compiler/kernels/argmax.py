"""The index of the largest value of each row."""

from dataclasses import dataclass

from xdsl.ir import Operation

from csrun.cirh.ops.reduction import ArgmaxOp
from csrun.compiler.array import Array
from csrun.compiler.graph import Graph
from csrun.compiler.kernels.base import Kernel, Matcher, Name


@dataclass(frozen=True)
class Argmax(Kernel):
    """out = argmax of x along `dim`.

    Shapes: x [..., N, ...] -> out [..., ...] int64
    """

    x: Array
    dim: int
    out: Array

    kind = "argmax"

    @property
    def reads(self) -> tuple[Array, ...]:
        """The values."""
        return (self.x,)

    @property
    def writes(self) -> tuple[Array, ...]:
        """The indices."""
        return (self.out,)

    def emit(self, name: Name) -> list[str]:
        """One call."""
        return [f"{name(self.x)}.argmax({self.dim}, out={name(self.out)})"]


def match(operation: Operation, graph: Graph) -> Kernel | None:
    """Every argmax."""
    assert isinstance(operation, ArgmaxOp)
    graph.take(operation)
    return Argmax(
        graph.layer_of(operation),
        graph.array(operation.x),
        operation.dim.value.data,
        graph.array(operation.out),
    )


MATCHERS: dict[str, Matcher] = {ArgmaxOp.name: match}
