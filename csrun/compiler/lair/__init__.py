"""What no kernel of the library matches: lowered to loops over rows, fused, and generated."""

from collections.abc import Sequence

from xdsl.ir import Operation

from csrun.cirh.ops.arithmetic import SumOp
from csrun.compiler.graph import Graph
from csrun.compiler.lair.cluster import clusters_of
from csrun.compiler.lair.dialect import parse_kernels, print_kernels
from csrun.compiler.lair.kernel import Generated, generate_kernel
from csrun.compiler.lair.operators import scalar_of

__all__ = ["Generated", "generate_kernels", "parse_kernels", "print_kernels"]


def generate_kernels(
    operations: Sequence[Operation], graph: Graph, most: int | None = None
) -> list[tuple[int, Generated]]:
    """Kernels for those of the operators that `lair` takes, and where in the program they run.

    `most`: operators a kernel may have.
    """
    taken = []
    for op in operations:
        if op.results and graph.literal(op.results[0]) is not None:
            graph.take(op)  # a number is text in its readers
        elif scalar_of(op) is not None and not _is_sum_of_number(op, graph):
            taken.append(op)
    kernels = []
    for cluster in clusters_of(taken, graph, most):
        kernel = generate_kernel(cluster, graph)
        if kernel.writes:  # else it repeats what its readers broadcast
            kernels.append((graph.place_of(cluster.members[-1]), kernel))
    return kernels


def _is_sum_of_number(op: Operation, graph: Graph) -> bool:
    return isinstance(op, SumOp) and graph.literal(op.x) is not None
