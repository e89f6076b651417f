"""Generated kernels: operators without a library kernel, lowered to fused loops over rows."""

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation

from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import FunctionKernel, Phase
from csrun.compiler.lair.cluster import Cluster, clusters_of
from csrun.compiler.lair.dialect import parse_kernels, print_kernels
from csrun.compiler.lair.loop import KernelLoop
from csrun.compiler.lair.loop_kernel import LoopKernel
from csrun.compiler.lair.lower import Lowering
from csrun.compiler.lair.operators import scalar_of

__all__ = ["Generated", "generate_kernels", "parse_kernels", "print_kernels"]


@dataclass(frozen=True)
class Generated(LoopKernel, FunctionKernel):
    """Operators without a library kernel, one after the other over tiles of rows.

    Shapes: as the operators'
    """

    body: KernelLoop
    phase: Phase

    kind = "generated"

    @property
    def loop(self) -> KernelLoop:
        return self.body

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return the tiles of values that nothing outside reads."""
        return self.loop.scratch


def generate_kernel(cluster: Cluster, graph: Graph) -> Generated:
    """Return the kernel of a cluster, and take its operators."""
    lowering = Lowering(cluster, graph)
    loop = KernelLoop(lowering.build(), lowering.writes)
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
    """Return kernels for operators that `lair` supports, with their positions in the program.

    most: maximum number of operators of a kernel.
    """
    taken = [op for op in operations if scalar_of(op) is not None]
    return [
        (graph.place_of(cluster.members[-1]), generate_kernel(cluster, graph))
        for cluster in clusters_of(taken, graph, most)
    ]
