"""Lookups along an axis: one kernel per operator."""

from dataclasses import dataclass
from math import prod

from xdsl.ir import Operation

from csrun.cirh.batch_axes.label_sources import source_of_labels
from csrun.cirh.ops.base import integer
from csrun.cirh.ops.indexing import (
    GatherBackwardOp,
    GatherOp,
    IndexingBackwardOp,
    IndexingOp,
    IndexSelectBackwardOp,
    IndexSelectOp,
)
from csrun.compiler.graph.array import Array
from csrun.compiler.graph.graph import Graph
from csrun.compiler.graph.kernel import Kernel, Matcher, Name, Phase, indices_inside

FUNCTIONS: dict[str, str] = {
    GatherOp.name: "gather",
    GatherBackwardOp.name: "gather_backward",
    IndexSelectOp.name: "index_select",
    IndexSelectBackwardOp.name: "index_select_backward",
}


@dataclass(frozen=True)
class Indexing(Kernel):
    """One of the functions of `csrun.kernels.indexing`; `x` is a gradient in the backward pass.

    size: length of the indexed axis, if the indices are not known to be in range.
    """

    function: str
    x: Array
    indices: Array
    out: Array
    dim: int
    size: int | None
    phase: Phase

    kind = "indexing"

    @property
    def is_gradient(self) -> bool:
        return self.function.endswith("backward")

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.x, self.indices

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """Return scratch with the position in memory of each value."""
        places = Array(f"{self.out.name}/places", self.indices.shape, "int64")
        return (places,) if self.function == "gather" else ()

    @property
    def flops(self) -> int:
        """An addition for each value in the backward pass."""
        return prod(self.x.shape) if self.is_gradient else 0

    @property
    def _mesh(self) -> str | None:
        """Return the variable of the indices of all axes, which is bound once."""
        needs = self.function.startswith("gather")
        return "_".join(["mesh", *map(str, self.indices.shape)]) if needs else None

    def prepare(self, name: Name) -> list[str]:
        lines = ["from csrun.kernels import indexing"]
        if self._mesh:
            lines.append(f"{self._mesh} = indexing.mesh_of{self.indices.shape}")
        return lines

    def check(self, name: Name) -> list[str]:
        """Range check of indices that the host has not validated."""
        if self.size is None:
            return []
        return indices_inside(name(self.indices), self.size, self.layer)

    def emit(self, name: Name) -> list[str]:
        """Return the call of the function."""
        arrays = map(name, (self.x, self.indices, self.out, *self.scratch))
        arguments = ", ".join([*arrays, *([self._mesh] if self._mesh else []), str(self.dim)])
        return [f"indexing.{self.function}({arguments})"]


def match_indexing(operation: Operation, graph: Graph) -> Kernel:
    """Match the single operator."""
    assert isinstance(operation, IndexingOp | IndexingBackwardOp)
    graph.take(operation)
    x, indices = map(graph.array, operation.operands)
    dim = integer(operation.properties, "dim")
    phase, out = graph.phase_of(operation), graph.array(operation.out)
    looked_into = x if isinstance(operation, IndexingOp) else out
    return Indexing(
        graph.layer_of(operation),
        FUNCTIONS[operation.name],
        x,
        indices,
        out,
        dim,
        None if _is_checked(operation, phase) else looked_into.shape[dim],
        phase,
    )


def _is_checked(operation: IndexingOp | IndexingBackwardOp, phase: Phase) -> bool:
    """Return whether indices are known to be valid: by the streamers, or by the forward pass."""
    is_gradient = isinstance(operation, IndexingBackwardOp) and phase is not Phase.FORWARD
    return is_gradient or source_of_labels(operation.indices) is not None


MATCHERS: dict[str, Matcher] = dict.fromkeys(FUNCTIONS, match_indexing)
