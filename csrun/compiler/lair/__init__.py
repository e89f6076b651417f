"""Generated kernels: operators without a library kernel, lowered to fused loops over rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation

from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import FunctionKernel, Name, Phase
from csrun.compiler.lair.cluster import Cluster, clusters_of
from csrun.compiler.lair.dialect import parse_kernels, print_kernels
from csrun.compiler.lair.loop import KernelLoop
from csrun.compiler.lair.lower import Lowering
from csrun.compiler.lair.operators import scalar_of

__all__ = ["Generated", "generate_kernels", "parse_kernels", "print_kernels"]


@dataclass(frozen=True)
class Generated(FunctionKernel):
    """Operators that the library has no kernel for, one after the other over tiles of rows.

    Shapes: as the operators'
    """

    loop: KernelLoop
    phase: Phase

    kind = "generated"

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Tiles of what nobody else reads."""
        return self.loop.scratch

    @property
    def flops(self) -> int:
        """Operations: so many per value for each operator."""
        return self.loop.flops

    def prepare(self, name: Name) -> list[str]:
        """The views of each tile, and what the operators' texts need."""
        return self.loop.text.prepare(name)

    def emit(self, name: Name) -> list[str]:
        """The loop; without one when a single tile holds all."""
        return self.loop.text.emit(name)


def generate_kernel(cluster: Cluster, graph: Graph, number: int) -> Generated:
    """The kernel of a cluster, whose operators are taken; `number` tells kernels apart."""
    lowering = Lowering(cluster, graph)
    loop = KernelLoop(lowering.build(), lowering.writes, number)
    graph.start(cluster.members[-1])
    graph.take(*cluster.members)
    return Generated(
        next(iter(cluster.layers), graph.layer_of(cluster.members[-1])),
        lowering.reads,
        tuple(lowering.writes.values()),
        loop,
        cluster.phase,
    )


def generate_kernels(
    operations: Sequence[Operation], graph: Graph, most: int | None = None
) -> list[tuple[int, Generated]]:
    """Kernels for those of the operators that `lair` takes, and where in the program they run.

    `most`: operators a kernel may have.
    """
    taken = [op for op in operations if scalar_of(op) is not None]
    return [
        (graph.place_of(cluster.members[-1]), generate_kernel(cluster, graph, number))
        for number, cluster in enumerate(clusters_of(taken, graph, most))
    ]
