"""Fusion: operators that one loop over rows can compute form a cluster, which becomes a kernel.

Operators are added in program order; the state of a cluster is updated incrementally, so that
adding an operator does not visit all of its members.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace
from itertools import combinations
from math import prod
from operator import attrgetter

from xdsl.ir import Operation, SSAValue

from csrun.cirh.ops.learning import UpdatingOp
from csrun.cirh.ops.model import LeafOp
from csrun.cirh.ops.shape import VIEWS
from csrun.compiler.graph.graph import Graph, Phase, parameter_of
from csrun.compiler.graph.view_ops import base_of
from csrun.compiler.lair.operators import operands_of, space_of
from csrun.compiler.lair.space import Space, is_read_by_rows, loops_of

LONG_ROW = 4096  # elements of a row: a tile of a few such rows fills a core's cache


@dataclass(order=True)
class _OutsideReader:
    """Operator outside of the cluster that reads a member, and its position as far as known."""

    place: int
    number: int
    op: Operation = field(compare=False)


@dataclass(eq=False)
class Cluster:
    """A cluster of operators; its kernel runs at the position of the last one.

    loops: numbers of rows that a loop over all of them may have.
    axes: for each operator and number of rows, the leading axes that are the rows.
    layers: those whose weights it reads or whose gradients it writes.
    """

    loops: frozenset[int]
    axes: Mapping[Operation, Mapping[int, int]]
    phase: Phase
    members: list[Operation]
    layers: set[str]
    place: int
    readers: list[_OutsideReader] = field(default_factory=list)  # a heap
    unfusable: set["Cluster"] = field(default_factory=set)  # clusters it can never be fused with
    is_closed: bool = False

    @property
    def rows(self) -> int:
        """Number of rows of the loop, small enough that little is repeated within a row."""
        most = max(prod(space_of(op)) for op in self.members)
        short = (rows for rows in self.loops if most <= rows * LONG_ROW)
        return min(short, default=max(self.loops))

    @property
    def spaces(self) -> dict[Operation, Space]:
        """Iteration spaces of its operators in its loop."""
        rows = self.rows
        return {op: Space.of(op, self.axes[op][rows]) for op in self.members}


def clusters_of(operations: Sequence[Operation], graph: Graph, most: int | None) -> list[Cluster]:
    """Fuse operators, in program order, with the producers of their operands, if valid.

    most: maximum number of operators of a cluster.
    """
    gathering = _Clustering(graph)
    for op in operations:
        gathering.add(op, most)
    clusters = list(dict.fromkeys(gathering.cluster_of.values()))
    for cluster in clusters:
        cluster.members.sort(key=graph.place_of)
    return sorted(clusters, key=attrgetter("place"))


class _Clustering:
    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._loops: dict[Operation, dict[int, int]] = {}
        self._turn_of = self._turns()
        self.cluster_of: dict[Operation, Cluster] = {}
        self._count = 0

    def _turns(self) -> list[int]:
        """Return for each position how often the layer has changed whose weights or gradients are
        used.
        """
        turns, layers = [0], set[str]()
        for op in self._graph.operations:
            own = set() if isinstance(op, (LeafOp, UpdatingOp, *VIEWS)) else self._layers(op)
            turns.append(turns[-1] + bool(own and own != layers))
            layers = own or layers
        return turns[1:]

    def add(self, op: Operation, most: int | None) -> None:
        """Fuse the clusters that `op` reads from: all, else one of them, else none."""
        self._loops[op] = loops_of(op, self._graph)
        alone = self._alone(op)
        before = self._producers(op)
        for chosen in (before, *([one] for one in reversed(before))):
            if most is not None and sum(len(c.members) for c in chosen) >= most:
                continue
            loops = self._common_loops(chosen, alone)
            if chosen and loops and not self._is_read_between(chosen, op):
                self._unite([*chosen, alone], loops)
                return
        self.cluster_of[op] = alone

    def _alone(self, op: Operation) -> Cluster:
        """Return a cluster of one operator."""
        place = self._graph.place_of(op)
        loops, phase = frozenset(self._loops[op]), self._graph.phase_of(op)
        cluster = Cluster(loops, self._loops, phase, [op], self._layers(op), place)
        for reader in self._graph.readers(op.results[0]):
            self._count += 1
            heappush(
                cluster.readers, _OutsideReader(self._graph.runs_at(reader), self._count, reader)
            )
        return cluster

    def _producers(self, op: Operation) -> list[Cluster]:
        found = (self._cluster_of_base(value) for value in operands_of(op))
        return list(dict.fromkeys(cluster for cluster in found if cluster is not None))

    def _cluster_of_base(self, value: SSAValue) -> Cluster | None:
        owner = base_of(value).owner
        return self.cluster_of.get(owner) if isinstance(owner, Operation) else None

    def _common_loops(self, chosen: Sequence[Cluster], alone: Cluster) -> frozenset[int]:
        """Return the rows of a loop that can compute all of them."""
        parts = [*chosen, alone]
        if any(part.is_closed for part in chosen) or len({part.phase for part in parts}) > 1:
            return frozenset()
        if len(set().union(*(part.layers for part in parts))) > 1:
            return frozenset()
        # A layer's weights are only available during its visits.
        turns = {self._turn_of[part.place] for part in parts if part.layers}
        if turns and turns != {self._turn_of[alone.place]}:
            return frozenset()
        loops = alone.loops.intersection(*(part.loops for part in chosen))
        loops = self._kept(loops, alone.members, chosen)
        for one, other in combinations(chosen, 2):
            loops &= self._loops_of_both(one, other) if loops else loops
        return loops

    def _loops_of_both(self, one: Cluster, other: Cluster) -> frozenset[int]:
        """Return the loops that clusters which read each other have in common."""
        if other in one.unfusable:
            return frozenset()
        small, large = sorted((one, other), key=lambda c: len(c.members))
        loops = self._kept(one.loops & other.loops, small.members, [large])
        loops = self._kept(loops, self._readers_in(small, large), [small])
        if not loops:
            one.unfusable.add(other)
            other.unfusable.add(one)
        return loops

    def _kept(
        self, loops: frozenset[int], readers: Iterable[Operation], of: Sequence[Cluster]
    ) -> frozenset[int]:
        """Return those of the loops in which all readers read the clusters `of` by rows."""
        for op in readers:
            for value in operands_of(op):
                if loops and self._cluster_of_base(value) in of:
                    loops = frozenset(n for n in loops if self._is_by_rows(value, op, n))
        return loops

    def _readers_in(self, small: Cluster, large: Cluster) -> list[Operation]:
        """Return the members of `large` that read members of `small`."""
        readers = (r for op in small.members for r in self._graph.readers(op.results[0]))
        return [reader for reader in readers if self.cluster_of.get(reader) is large]

    def _is_by_rows(self, value: SSAValue, op: Operation, rows: int) -> bool:
        producer = base_of(value).owner
        assert isinstance(producer, Operation), "it is a member of a cluster"
        reader, made = (Space.of(o, self._loops[o][rows]) for o in (op, producer))
        return is_read_by_rows(value, reader, made)

    def _is_read_between(self, parts: Sequence[Cluster], op: Operation) -> bool:
        """Return whether an outside operator reads a member before, or at the position of, `op`."""
        return any(self._first_outside(part, parts, op) for part in parts)

    def _first_outside(self, cluster: Cluster, parts: Sequence[Cluster], op: Operation) -> bool:
        heap, inside, place = cluster.readers, [], self._graph.place_of(op)
        found = False
        while heap and heap[0].place <= place:
            first = heap[0]
            owner = self.cluster_of.get(first.op)
            if owner is cluster:
                heappop(heap)
            elif first.op is op or owner in parts:
                inside.append(heappop(heap))
            elif owner is not None and owner.place > first.place:
                heapreplace(heap, _OutsideReader(owner.place, first.number, first.op))
            else:
                # A library kernel has a fixed position: nothing later can be fused before it.
                cluster.is_closed = owner is None
                found = True
                break
        for reader in inside:
            heappush(heap, reader)
        return found

    def _unite(self, parts: Sequence[Cluster], loops: frozenset[int]) -> None:
        """Merge clusters into the largest one."""
        largest = max(parts, key=lambda part: len(part.members))
        for part in parts:
            if part is largest:
                continue
            largest.members += part.members
            largest.layers |= part.layers
            largest.unfusable |= part.unfusable
            for other in part.unfusable:
                other.unfusable.add(largest)
            for reader in part.readers:
                heappush(largest.readers, reader)
            for member in part.members:
                self.cluster_of[member] = largest
        largest.loops = loops
        largest.place = max(part.place for part in parts)

    def _layers(self, op: Operation) -> set[str]:
        """Return the layers whose weights an operator reads, or whose gradient it computes."""
        found = [parameter_of(value) for value in operands_of(op)]
        found += [self._graph.trains(result) for result in op.results]
        return {p.scope.data for p in found if p is not None and p.scope is not None}
