"""Maximum and minimum along axes."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.ops.base import integer, ints
from csrun.cirh.ops.reductions import AmaxOp, AminOp
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name, Phase, UnaryKernel


@dataclass(frozen=True)
class Extremum(UnaryKernel):
    """out = the maximum, or the minimum, of x along some axes."""

    function: str
    dims: tuple[int, ...]
    keepdims: bool
    phase: Phase

    kind = "reduction"

    @property
    def flops(self) -> int:
        """A comparison for each value."""
        return prod(self.x.shape)

    def emit(self, name: Name) -> list[str]:
        options = f"axis={self.dims}, keepdims={self.keepdims}, out={name(self.out)}"
        return [f"{self.function}.reduce({name(self.x)}, {options})"]


def match_extremum(operation: Operation, graph: Graph) -> Kernel:
    """Match the single operator."""
    assert isinstance(operation, AmaxOp | AminOp)
    graph.take(operation)
    return Extremum(
        graph.layer_of(operation),
        graph.array(operation.x),
        graph.array(operation.out),
        "maximum" if isinstance(operation, AmaxOp) else "minimum",
        ints(operation.properties, "dims"),
        bool(integer(operation.properties, "keepdim")),
        graph.phase_of(operation),
    )


MATCHERS: dict[str, Matcher] = dict.fromkeys((AmaxOp.name, AminOp.name), match_extremum)
