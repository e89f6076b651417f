"""Which operators become one kernel: those that one loop over rows can compute, in any order."""

from dataclasses import dataclass, field

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.shape import VIEWS, ViewOp
from csrun.cirh.types import shape_of, type_of
from csrun.compiler.graph import Graph, Phase, parameter_of
from csrun.compiler.lair.operators import operands_of, reduced_axes, space_of
from csrun.compiler.views import base_of


@dataclass(eq=False)
class Cluster:
    """Operators in program order; it runs where the last one stands.

    rows: the size of axis 0 of every iteration space, 0 for single numbers. layers: those whose
    weights it reads or whose gradients it writes.
    """

    rows: int
    phase: Phase
    members: list[Operation] = field(default_factory=list)
    layers: set[str] = field(default_factory=set)


def clusters_of(operations: list[Operation], graph: Graph, most: int | None) -> list[Cluster]:
    """Put operators, in program order, with those whose results they read, where that is right.

    `most`: operators a cluster may have.
    """
    gathering = _Gathering(graph)
    for op in operations:
        gathering.add(op, most)
    return list(dict.fromkeys(gathering.cluster_of.values()))


class _Gathering:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self.cluster_of: dict[Operation, Cluster] = {}
        # Of each member: they are asked for again with each operator that joins.
        self._readers: dict[Operation, tuple[Operation, ...]] = {}

    def add(self, op: Operation, most: int | None) -> None:
        """Join the clusters that `op` reads from: all, else one of them, else none."""
        space = space_of(op)
        self._readers[op] = tuple(self._graph.readers(op.results[0]))
        alone = Cluster(space[0] if space else 0, self._graph.phase_of(op), [op], self._layers(op))
        before = self._producers(op)
        for chosen in (before, *([one] for one in reversed(before)), []):
            joined = self._union([*chosen, alone])
            if most is not None and len(joined.members) > most:
                continue
            if not chosen or self._is_right(joined, chosen, op):
                for member in joined.members:
                    self.cluster_of[member] = joined
                return

    def _producers(self, op: Operation) -> list[Cluster]:
        owners = (base_of(value).owner for value in operands_of(op))
        found = (self.cluster_of.get(owner) for owner in owners if isinstance(owner, Operation))
        return list(dict.fromkeys(cluster for cluster in found if cluster is not None))

    def _is_right(self, joined: Cluster, parts: list[Cluster], op: Operation) -> bool:
        """Whether one loop computes it all, at the place of `op`."""
        alike = all((p.rows, p.phase) == (joined.rows, joined.phase) for p in parts)
        if not alike or len(joined.layers) > 1:
            return False
        members = set(joined.members)
        place = self._graph.place_of(op)
        for member in joined.members:
            for reader in self._readers[member]:
                if reader not in members and self._place_of(reader) <= place:
                    return False
        # Clusters that are joined may have been apart because one does not read the other by rows.
        readers = [op] if len(parts) == 1 else joined.members
        return all(
            self._is_row_by_row(value, reader, members, joined.rows)
            for reader in readers
            for value in operands_of(reader)
        )

    def _is_row_by_row(
        self, value: SSAValue, op: Operation, members: set[Operation], rows: int
    ) -> bool:
        """Whether each row of what `op` reads is there when the loop comes to it."""
        producer = base_of(value).owner
        if not isinstance(producer, Operation) or producer not in members:
            return True
        if 0 in reduced_axes(producer):
            return False  # it is there after the last row
        if len(shape_of(type_of(value))) != len(space_of(op)):
            return False
        while isinstance(value.owner, VIEWS):
            if not isinstance(value.owner, ViewOp) or shape_of(type_of(value))[:1] != (rows,):
                return False
            value = value.owner.x
        return shape_of(type_of(value))[:1] == (rows,) or not rows

    def _place_of(self, op: Operation) -> int:
        """Where the kernel runs that an operator belongs to."""
        cluster = self.cluster_of.get(op)
        return self._graph.place_of(cluster.members[-1]) if cluster else self._graph.runs_at(op)

    def _layers(self, op: Operation) -> set[str]:
        """Layers of the weights that an operator reads, or of that whose gradient it makes."""
        found = [parameter_of(value) for value in operands_of(op)]
        found.append(self._graph.trains(op.results[0]))
        return {p.scope.data for p in found if p is not None and p.scope is not None}

    def _union(self, parts: list[Cluster]) -> Cluster:
        members = sorted((m for part in parts for m in part.members), key=self._graph.place_of)
        layers = {layer for part in parts for layer in part.layers}
        return Cluster(parts[-1].rows, parts[-1].phase, members, layers)
