"""A generated kernel as the rest of the compiler sees it."""

from dataclasses import dataclass

from csrun.compiler.graph import Array, Graph, parameter_of
from csrun.compiler.kernels.base import Kernel, Name, Phase
from csrun.compiler.lair.cluster import Cluster
from csrun.compiler.lair.loop import Loop
from csrun.compiler.lair.lower import Lowering


@dataclass(frozen=True)
class Generated(Kernel):
    """Operators that the library has no kernel for, one behind the other over tiles of rows.

    Shapes: as the operators'
    """

    loop: Loop
    operands: tuple[Array, ...]
    results: tuple[Array, ...]
    weights: tuple[str, ...]
    phase: Phase

    kind = "generated"

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.operands

    @property
    def writes(self) -> tuple[Array, ...]:
        return self.results

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Tiles of what nobody else reads."""
        return self.loop.scratch

    @property
    def parameters(self) -> tuple[str, ...]:
        return self.weights

    @property
    def flops(self) -> int:
        """Of each operator so many for each value."""
        return self.loop.flops

    def prepare(self, name: Name) -> list[str]:
        """The views of each tile, and what the operators' texts need."""
        return self.loop.prepare(name)

    def emit(self, name: Name) -> list[str]:
        """The loop; without one when a single tile holds all."""
        return self.loop.emit(name)


def generate_kernel(cluster: Cluster, graph: Graph) -> Generated:
    """The kernel of a cluster, whose operators are taken."""
    lowering = Lowering(cluster, graph)
    op = lowering.build(cluster.rows, cluster.rows)
    loop = Loop(op, lowering.writes)
    graph.start(cluster.members[-1])
    graph.take(*cluster.members)
    weights = [parameter_of(value) for value in lowering.reads]
    return Generated(
        next(iter(cluster.layers), graph.layer_of(cluster.members[-1])),
        loop,
        tuple(dict.fromkeys(lowering.reads.values())),
        tuple(lowering.writes.values()),
        tuple(weight.symbol.data for weight in weights if weight is not None),
        cluster.phase,
    )
