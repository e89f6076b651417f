"""Embedding: rows of a table, and the gradient of the table."""

from dataclasses import dataclass, replace
from math import prod
from typing import Self

from xdsl.ir import Operation

from csrun.cirh.ops.embedding import EmbeddingDenseBackwardOp, EmbeddingOp
from csrun.compiler.array import Array
from csrun.compiler.graph import Graph
from csrun.compiler.kernels.base import Kernel, Matcher, Name, Phase

IMPORT = "from csrun.executable import embedding"


@dataclass(frozen=True)
class Lookup(Kernel):
    """out = the row of the weight that each index names.

    Shapes: weight [V, D], indices [N] -> out [N, D]
    """

    weight: Array
    indices: Array
    out: Array

    kind = "embedding"

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.weight, self.indices

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    def prepare(self, name: Name) -> list[str]:
        return [IMPORT]

    def emit(self, name: Name) -> list[str]:
        arguments = ", ".join(map(name, (self.weight, self.indices, self.out)))
        return [f"embedding.lookup({arguments})"]


@dataclass(frozen=True)
class LookupBackward(Kernel):
    """out = for each row of the weight the sum of the gradients of those that it was taken for.

    With `adds` it is added to what is there.

    Shapes: grad [N, D], indices [N] -> out [V, D]
    """

    grad: Array
    indices: Array
    out: Array
    padding: int
    adds: bool = False

    kind = "embedding"
    phase = Phase.BACKWARD

    @property
    def reads(self) -> tuple[Array, ...]:
        return self.grad, self.indices

    @property
    def writes(self) -> tuple[Array, ...]:
        return (self.out,)

    @property
    def scratch(self) -> tuple[Array, ...]:
        """The gradients in the order of their rows."""
        return (Array(f"{self.grad.name}/by_row", self.grad.shape, self.grad.dtype),)

    @property
    def flops(self) -> int:
        """An addition for each value."""
        return prod(self.grad.shape)

    def adding(self) -> Self:
        return replace(self, adds=True)

    def prepare(self, name: Name) -> list[str]:
        return [IMPORT]

    def emit(self, name: Name) -> list[str]:
        arrays = (self.grad, self.indices, self.out, *self.scratch)
        adds = ", adds=True" if self.adds else ""
        return [f"embedding.add_up({', '.join(map(name, arrays))}, {self.padding}{adds})"]


def match_lookup(operation: Operation, graph: Graph) -> Kernel:
    assert isinstance(operation, EmbeddingOp)
    graph.take(operation)
    return Lookup(
        graph.layer_of(operation),
        graph.array(operation.weight),
        _rows(graph.array(operation.indices), ()),
        _rows(graph.array(operation.out), graph.array(operation.weight).shape[1:]),
    )


def match_backward(operation: Operation, graph: Graph) -> Kernel:
    assert isinstance(operation, EmbeddingDenseBackwardOp)
    graph.take(operation)
    out = graph.array(operation.out)
    return LookupBackward(
        graph.layer_of(operation),
        _rows(graph.array(operation.grad), out.shape[1:]),
        _rows(graph.array(operation.indices), ()),
        out,
        operation.padding_idx.value.data,
    )


def _rows(array: Array, row: tuple[int, ...]) -> Array:
    """All leading axes as one; a copy stands before what does not lie so."""
    size = prod(array.shape) // max(prod(row), 1) if prod(row) else prod(array.shape[:-1])
    found = array.reshaped((size, *row))
    assert found is not None, "a copy stands before an array whose rows are no view"
    return found


MATCHERS: dict[str, Matcher] = {
    EmbeddingOp.name: match_lookup,
    EmbeddingDenseBackwardOp.name: match_backward,
}
